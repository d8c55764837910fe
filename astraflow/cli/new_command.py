"""`astraflow new`: a folder with a recipe, a reward, questions and a test, to begin a task of one's own."""

import re
from pathlib import Path
from typing import Annotated

import typer

from astraflow.contract.errors import InvalidInput

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def new(
    name: Annotated[str, typer.Argument(help="Name of the task, such as word-sort: small letters, digits, - and _.")],
    folder: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="New folder; default: the name, in this folder.")
    ] = None,
) -> None:
    """Create a task of your own: a recipe, a reward, questions and a test that run at once and are yours to change.

    For example: astraflow new word-sort
    """
    target = folder or Path(name)
    _write(name, target)
    typer.echo(f"created {target}: recipe.toml, reward.py, questions.jsonl, test_reward.py")
    typer.echo(f"next:  cd {target} && astraflow --plugin reward.py run recipe.toml")
    typer.echo(f"check: astraflow --plugin reward.py check reward {name.replace('-', '_')} --dataset "
               """'{"kind": "jsonl", "path": "questions.jsonl"}'""")  # fmt: skip


def _write(name: str, target: Path) -> None:
    """Copies the example task, with `name` in place of its name. Raises: InvalidInput."""
    from astraflow.recipe.files import EXAMPLES, PACKAGED
    from astraflow.rewards import rewards

    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"cannot create the task {name!r}: the name is not in small letters and digits, beginning with a letter; "
            "use one such as word-sort",
            code="new.invalid_name",
        )
    identifier = name.replace("-", "_")
    if identifier in rewards.kinds():
        raise InvalidInput(
            f"cannot create the task {name!r}: there is a reward {identifier!r} already; choose another name",
            code="new.name_in_use",
        )
    if target.exists():
        raise InvalidInput(
            f"cannot create {str(target)!r}: it exists; choose another name, or a new folder with --to",
            code="new.folder_in_use",
        )
    title = "".join(part.capitalize() for part in identifier.split("_"))
    target.mkdir(parents=True)
    for file in sorted((PACKAGED / EXAMPLES / "new_task").iterdir()):
        if file.is_file():
            text = file.read_text().replace("my-task", name).replace("my_task", identifier).replace("MyTask", title)
            (target / file.name).write_text(text)
