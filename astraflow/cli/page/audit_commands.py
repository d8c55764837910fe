"""`astraflow audit` and `astraflow login-link`: the audit log of a page and its login links."""

from pathlib import Path
from typing import Annotated

import typer

audit = typer.Typer(
    help="Verify and export the audit log of a page; also while the page runs.",
    no_args_is_help=True,
    add_completion=False,
)

Location = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FOLDER]",
        help="Folder or name of a run, or the `--directory` of `serve web`; default: the latest active run on this "
        "machine, or the page in ASTRAFLOW_HOME.",
    ),
]
Text = Annotated[str, typer.Option(help="Only entries with this text in target, reason, before or after.")]


@audit.command()
def verify(location: Location = None) -> None:
    """Verify the hash chain of the audit log; exits with 1 and shows the first invalid entry if it is broken."""
    from astraflow.cli.page.page_programs import run_audit

    raise typer.Exit(run_audit(location, "verify"))


@audit.command()
def export(
    location: Location = None,
    ending: Annotated[str, typer.Option("--format", help="Format: ndjson or csv.")] = "ndjson",
    actor: Annotated[str, typer.Option(help="Only entries of this actor.")] = "",
    action: Annotated[str, typer.Option(help="Only this action, such as node.drain.")] = "",
    result: Annotated[str, typer.Option(help="Only this result: done, refused or failed.")] = "",
    text: Text = "",
    since: Annotated[str, typer.Option(metavar="DAY", help="From this day on, UTC, such as 2026-11-21.")] = "",
    until: Annotated[str, typer.Option(metavar="DAY", help="Up to the end of this day, UTC.")] = "",
) -> None:
    """Write the audit log to standard output, newest entry first; the same content as the export of the page."""
    from astraflow.cli.page.page_programs import run_audit

    values = {"actor": actor, "action": action, "result": result, "text": text, "since": since, "until": until}
    filters = [f"--{name}={value}" for name, value in values.items() if value]
    raise typer.Exit(run_audit(location, "export", f"--format={ending}", *filters))


def login_link(location: Location = None) -> None:
    """Print a new one-time login link for the admin of a page on this machine. Needs read access to its folder."""
    from astraflow.cli.page.page_programs import login_link as print_login_link

    raise typer.Exit(print_login_link(location))
