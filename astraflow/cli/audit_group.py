"""`astraflow audit` and `astraflow login-link`: the audit of a page and its login links, from the command line."""

from pathlib import Path
from typing import Annotated

import typer

audit = typer.Typer(
    help="Check the audit of a page, and take it away. The page may run meanwhile.",
    no_args_is_help=True,
    add_completion=False,
)

Place = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FOLDER]",
        help="A run's folder, or the `--directory` of `serve web`; by default the latest active run here.",
    ),
]
Text = Annotated[str, typer.Option(help="Only entries with this in target, reason, before or after.")]


@audit.command()
def verify(place: Place = None) -> None:
    """Check the chain from end to end: code 1, and the first entry that does not hold, where it is broken."""
    from astraflow.cli.auditing import audited

    raise typer.Exit(audited(place, "verify"))


@audit.command()
def export(
    place: Place = None,
    ending: Annotated[str, typer.Option("--format", help="ndjson or csv.")] = "ndjson",
    actor: Annotated[str, typer.Option(help="Only what this one did.")] = "",
    action: Annotated[str, typer.Option(help="Only this action, as in node.drain.")] = "",
    result: Annotated[str, typer.Option(help="Only what was done, refused or failed.")] = "",
    text: Text = "",
    since: Annotated[str, typer.Option(metavar="DAY", help="From this day on, UTC, as in 2026-11-21.")] = "",
    until: Annotated[str, typer.Option(metavar="DAY", help="Up to the end of this day, UTC.")] = "",
) -> None:
    """Write it to standard output, newest first: what the page's own export holds."""
    from astraflow.cli.auditing import audited

    given = {"actor": actor, "action": action, "result": result, "text": text, "since": since, "until": until}
    filters = [f"--{name}={value}" for name, value in given.items() if value]
    raise typer.Exit(audited(place, "export", f"--format={ending}", *filters))


def login_link(place: Place = None) -> None:
    """Print a new link that logs the admin in at a page that runs here, once. For who may read the page's folder."""
    from astraflow.cli.auditing import login_link as printed

    raise typer.Exit(printed(place))
