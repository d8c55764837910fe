"""`astraflow recipes`: recipes and their settings; `astraflow new`: a folder with a task or an agent of one's own."""

import ast
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.cli.options import Json, Overrides, complete_recipe
from astraflow.contract.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from astraflow.contract.launching import RecipeCard, RecipeForm, RecipePreflight


def recipes(
    recipe: Annotated[
        str, typer.Argument(help="Show the settings of this recipe.", autocompletion=complete_recipe)
    ] = "",
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    folders: Annotated[
        list[Path], typer.Option("--recipes", metavar="DIR", help="Folder with your own recipes; may be repeated.")
    ] = [],  # noqa: B006 (the same)
    host: Annotated[
        str, typer.Option(help="Address for nodes on other machines; its ports are checked.")
    ] = "127.0.0.1",
    preflight: Annotated[
        bool,
        typer.Option(
            "--preflight", help="Check prices and permissions with the providers of the recipe; starts nothing."
        ),
    ] = False,
    role: Annotated[
        str, typer.Option("--as", metavar="ROLE", help="Refuse overrides that this role may not make on the page.")
    ] = "",
    data: Annotated[
        list[str], typer.Option("--data", metavar="LOCATION", help="With --as: a data location; may be repeated.")
    ] = [],  # noqa: B006 (the same)
    as_json: Json = False,
) -> None:
    """List the packaged recipes and the recipes in your folders, or the settings of one recipe."""
    from astraflow.cli.output import show
    from astraflow.cli.recipes.cards import recipe_cards
    from astraflow.cli.recipes.form import preflight_recipe, recipe_form
    from astraflow.cli.recipes.override_limits import Limits

    limits = Limits(role=role, data_locations=tuple(data)) if role else None
    if recipe and preflight:
        result = preflight_recipe(recipe, overrides, folders=folders, limits=limits)
        show(result, _preflight_table, as_json=as_json)
    elif recipe:
        form = recipe_form(recipe, overrides, folders=folders, host=host, limits=limits)
        show(form, _settings_table, as_json=as_json)
    else:
        show(recipe_cards(folders), _recipe_list, as_json=as_json)


def _preflight_table(preflight: "RecipePreflight") -> "RenderableType":
    from astraflow.cli.output import Table

    table = Table("provider", "pool", "check", "result")
    for check in preflight.checks:
        text = check.message if check.is_ok else f"{check.message}. {check.remedy}"
        table.add(check.provider, check.pool or "", check.kind.value, text)
    return table


def _settings_table(form: "RecipeForm") -> "RenderableType":
    from astraflow.cli.output import Table

    table = Table("setting", "description")
    for field in form.fields:
        table.add(shlex.quote(f"{field.key}={field.text}"), field.description)
    return table


def _recipe_list(cards: "Sequence[RecipeCard]") -> "RenderableType":
    """Returns a line for each recipe, those that this machine can run first."""
    from rich.console import Group
    from rich.text import Text

    from astraflow.cli.output import Table

    table = Table("recipe", "here", "description")
    for card in sorted(cards, key=lambda card: bool(card.obstacles)):
        table.add(card.name, "no" if card.obstacles else "yes", card.problem or card.summary)
    return Group(table, Text("why a recipe cannot run here, and what it needs: astraflow check recipe RECIPE"))


_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def new(
    name: Annotated[str, typer.Argument(help="Name of the task, such as word-sort: small letters, digits, - and _.")],
    folder: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="New folder; default: the name, in this folder.")
    ] = None,
    agent: Annotated[
        str, typer.Option("--agent", metavar="FILE:FUNCTION", help="Agent of yours to train: writes a recipe for it.")
    ] = "",
) -> None:
    """Create a task of your own: a recipe, a reward, questions and a test that run at once and are yours to change.

    For example: astraflow new word-sort
    """
    target = folder or Path(name)
    if agent:
        file = _write_agent(name, target, agent)
        typer.echo(f"created {target}: recipe.toml, with a tiny model; name your model, dataset and reward in it")
        typer.echo(f"next:  astraflow --plugin {file} run {target / 'recipe.toml'}")
        return
    _write(name, target)
    typer.echo(f"created {target}: recipe.toml, reward.py, questions.jsonl, test_reward.py")
    typer.echo(f"next:  cd {target} && astraflow --plugin reward.py run recipe.toml")
    typer.echo(f"check: astraflow --plugin reward.py check reward {name.replace('-', '_')} --dataset "
               """'{"kind": "jsonl", "path": "questions.jsonl"}'""")  # fmt: skip


def _write(name: str, target: Path) -> None:
    """Copies the example task, with `name` in place of its name. Raises: InvalidInput."""
    from astraflow.recipe.files import EXAMPLES, PACKAGED
    from astraflow.rewards import rewards

    _check_name(name)
    identifier = name.replace("-", "_")
    if identifier in rewards.kinds():
        raise InvalidInput(
            f"cannot create the task {name!r}: there is a reward {identifier!r} already; choose another name",
            code="new.name_in_use",
        )
    _check_folder(target)
    title = "".join(part.capitalize() for part in identifier.split("_"))
    target.mkdir(parents=True)
    for file in sorted((PACKAGED / EXAMPLES / "new_task").iterdir()):
        if file.is_file():
            text = file.read_text().replace("my-task", name).replace("my_task", identifier).replace("MyTask", title)
            (target / file.name).write_text(text)


def _write_agent(name: str, target: Path, agent: str) -> Path:
    """Writes the recipe of the example agent for another one; returns the file of the agent. Raises: InvalidInput."""
    from astraflow.recipe.files import EXAMPLES, PACKAGED

    _check_name(name)
    path, _, function = agent.rpartition(":")
    file = Path(path)
    names = _functions(file)
    if function not in names:
        raise InvalidInput(
            f"cannot train {agent!r}: {path!r} has no function {function!r}; write FILE:FUNCTION with one of "
            f"{', '.join(names) or 'its functions, which it lacks'}",
            code="new.no_function",
        )
    _check_folder(target)
    recipe = (PACKAGED / EXAMPLES / "openai_agent.toml").read_text()
    for example, own in (
        ("openai_agent:solve", f"{file.stem}:{function}"),
        ("see openai_agent.py, and docs/how-to/agents.md", file.name),
        ("openai-agent", name),
        ("Example: an agent with a tool, written against the openai SDK,", f"The agent of {file.name}"),
    ):
        recipe = recipe.replace(example, own)
    target.mkdir(parents=True)
    (target / "recipe.toml").write_text(recipe)
    return file


def _functions(file: Path) -> list[str]:
    """Returns the functions of a Python file, without running it. Raises: InvalidInput."""
    try:
        tree = ast.parse(file.read_text())
    except (OSError, SyntaxError, ValueError) as problem:
        raise InvalidInput(
            f"cannot read the agent {str(file)!r}: {problem}; write --agent FILE.py:FUNCTION", code="new.no_agent"
        ) from problem
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"cannot create the task {name!r}: the name is not in small letters and digits, beginning with a letter; "
            "use one such as word-sort",
            code="new.invalid_name",
        )


def _check_folder(target: Path) -> None:
    if target.exists():
        raise InvalidInput(
            f"cannot create {str(target)!r}: it exists; choose another name, or a new folder with --to",
            code="new.folder_in_use",
        )
