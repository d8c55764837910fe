"""`astraflow runs`: lists and controls the runs of this machine, or those of a page through its API."""

import time
from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import Json, Port

runs = typer.Typer(
    name="runs",
    help="List, stop and clean the runs of this machine, and show their logs. With --web, or ASTRAFLOW_WEB and a token "
    "in ASTRAFLOW_WEB_TOKEN, those of a page, which also launches and resumes runs.",
    invoke_without_command=True,
    add_completion=False,
)

Web = Annotated[
    str,
    typer.Option(
        "--web", envvar="ASTRAFLOW_WEB", metavar="URL", help="Address of a page; default: the runs of this machine."
    ),
]
Name = Annotated[str, typer.Argument(help="Name of the run.")]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the audit log with your name; a page requires one.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows, newest first.")]
Key = Annotated[str, typer.Option(help="Idempotency key of an earlier attempt, so that nothing is done twice.")]

FOLLOW_S = 1.0


@runs.callback()
def show_runs(context: typer.Context, limit: Limit = 50, as_json: Json = False) -> None:
    """List the runs of this machine, active and ended, without a page."""
    if context.invoked_subcommand is None:
        _show_local(limit, as_json=as_json)


def _show_local(limit: int, *, as_json: bool) -> None:
    from astraflow.cli.output import show
    from astraflow.cli.page.local_runs import local_rows, local_table

    show(local_rows(limit=limit), local_table, as_json=as_json)


@runs.command("list")
def list_runs(
    web: Web = "",
    recorded: Annotated[
        bool,
        typer.Option("--recorded", help="With --web: all recorded runs, also those of other machines."),
    ] = False,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List the runs of this machine, or those of a page, newest first."""
    if not web and not recorded:
        _show_local(limit, as_json=as_json)
        return
    from astraflow.cli.output import show
    from astraflow.cli.page import runs_tables, web_api

    endpoint = web_api.find_web(web)
    rows = web_api.get(endpoint, "/runs" if recorded else "/launches", limit=limit)["items"]
    table = runs_tables.recorded_table if recorded else runs_tables.launch_table
    show(rows, table, as_json=as_json)


@runs.command()
def launch(
    reason: Reason,
    recipe: Annotated[str, typer.Argument(help="Name of a recipe on the page.")] = "",
    of: Annotated[str, typer.Option(help="Instead of a recipe: launched run whose settings are reused.")] = "",
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as stop.steps=50.")
    ] = [],  # noqa: B006 (typer copies it)
    fleet: Annotated[
        bool | None,
        typer.Option(
            "--fleet/--no-fleet",
            help="Start the nodes with a fleet service; default: as in the recipe or the reused run.",
        ),
    ] = None,
    endless: Annotated[
        bool | None,
        typer.Option("--endless/--ending", help="Run until stopped; default: end at the stop condition."),
    ] = None,
    limit_s: Annotated[float | None, typer.Option(min=1, help="Time limit in seconds.")] = None,
    key: Key = "",
    web: Web = "",
    as_json: Json = False,
) -> None:
    """Launch a run on the machine of the page."""
    from astraflow.cli.output import show
    from astraflow.cli.page import runs_tables, web_api

    body = runs_tables.launch_body(
        recipe=recipe, of=of, overrides=overrides, fleet=fleet, endless=endless, limit_s=limit_s, reason=reason
    )
    launched = web_api.post(web_api.find_web(web), "/launches", body, key=key)
    show(launched, runs_tables.launch_line, as_json=as_json)


@runs.command()
def stop(name: Name, reason: Reason = "", key: Key = "", web: Web = "", as_json: Json = False) -> None:
    """Stop a run; it can be resumed."""
    if not web:
        from astraflow.cli.page.local_runs import find_local
        from astraflow.client.local_runs import stop_run

        pid = stop_run(find_local(name))
        typer.echo(f"{name} is stopping (process {pid})")
        return
    from astraflow.cli.output import show
    from astraflow.cli.page import runs_tables, web_api

    path = f"/launches/{web_api.path_segment(name)}/stop"
    stopped = web_api.post(web_api.find_web(web), path, {"reason": reason}, key=key)
    show(stopped, runs_tables.launch_line, as_json=as_json)


@runs.command()
def resume(name: Name, reason: Reason, key: Key = "", web: Web = "", as_json: Json = False) -> None:
    """Resume a run from its latest state."""
    from astraflow.cli.output import show
    from astraflow.cli.page import runs_tables, web_api

    path = f"/launches/{web_api.path_segment(name)}/resume"
    resumed = web_api.post(web_api.find_web(web), path, {"reason": reason}, key=key)
    show(resumed, runs_tables.launch_line, as_json=as_json)


@runs.command()
def logs(
    name: Name,
    program: Annotated[str, typer.Option(help="Name of the process.")] = "launch",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log.")] = False,
    web: Web = "",
) -> None:
    """Print the end of a process's log."""
    if not web:
        from astraflow.cli.page.local_runs import print_local_log

        print_local_log(name, program, follow=follow, every_s=FOLLOW_S)
        return
    from astraflow.cli.page import runs_tables, web_api

    endpoint, path, offset = web_api.find_web(web), f"/launches/{web_api.path_segment(name)}/log", None
    while True:
        part = web_api.get(endpoint, path, program=program, after=offset)
        typer.echo(runs_tables.printable(part["text"]), nl=False)
        if not follow:
            return
        offset = part["end"]
        time.sleep(FOLLOW_S)


@runs.command()
def clean(
    older_than: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0, help="Also runs that ended earlier than this number of days ago."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the folders; without it they are only listed.")] = False,
    as_json: Json = False,
) -> None:
    """List the ended runs in ASTRAFLOW_HOME, and with --yes remove those that trained no step, or are too old.

    Active runs are never removed, nor are folders elsewhere (--run-dir). A removed run cannot be resumed or viewed.
    """
    from astraflow.cli.output import show
    from astraflow.cli.page import ended_runs, runs_tables

    ended, now = ended_runs.find_ended_runs(), time.time()
    removable = ended_runs.removable(ended, now=now, older_than_days=older_than)
    for run in removable if yes else ():
        ended_runs.remove(run)
    if yes:
        ended_runs.remove_dangling_links()
    rows = runs_tables.clean_rows(ended, removable, now=now, is_removed=yes)
    show(rows, runs_tables.clean_table, as_json=as_json)


audit = typer.Typer(
    name="audit",
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


def ui(
    port: Port = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the link without opening a browser.")] = False,
) -> None:
    """Open the page with all runs of this machine in a browser, and serve it until Ctrl-C if it does not run yet."""
    from astraflow.cli.page.page_programs import open_page

    raise typer.Exit(open_page(port=port, opens_browser=not no_browser))
