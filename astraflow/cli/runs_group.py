"""`astraflow runs`: what the page launched and followed, and launching more, through the page's API."""

import time
from typing import Annotated

import typer

runs = typer.Typer(
    help="Runs of a web page: list, launch, stop, resume, logs. The page's token is in ASTRAFLOW_WEB_TOKEN.",
    no_args_is_help=True,
    add_completion=False,
)

Web = Annotated[
    str, typer.Option("--web", metavar="URL", help="Address of the page; otherwise the variable ASTRAFLOW_WEB has it.")
]
Json = Annotated[bool, typer.Option("--json", help="For scripts: one JSON value.")]
Name = Annotated[str, typer.Argument(help="Name of the run.")]
Reason = Annotated[str, typer.Option(help="Why; the audit keeps it with your name.")]
Key = Annotated[str, typer.Option(help="Idempotency key of an earlier try: what was done already is not done again.")]

FOLLOW_S = 1.0


@runs.command("list")
def list_runs(
    web: Web = "",
    recorded: Annotated[bool, typer.Option("--recorded", help="All that the page followed, launched or not.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, the newest.")] = 20,
    as_json: Json = False,
) -> None:
    """Runs that were launched from the page, newest first."""
    from astraflow.cli import fleet_tables, runs_calls, runs_tables

    door = runs_calls.find_web(web)
    found = runs_calls.get(door, "/runs" if recorded else "/launches", limit=limit)["items"]
    table = runs_tables.recorded_table if recorded else runs_tables.launch_table
    fleet_tables.show(found, table, as_json=as_json)


@runs.command()
def launch(
    reason: Reason,
    recipe: Annotated[str, typer.Argument(help="Name of a recipe that the page has.")] = "",
    of: Annotated[
        str, typer.Option(help="Instead: a run that was launched there, of whose settings to make one.")
    ] = "",
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting that differs, as in stop.steps=50.")
    ] = [],  # noqa: B006 (typer copies it)
    fleet: Annotated[
        bool | None,
        typer.Option(
            "--fleet/--no-fleet", help="A fleet service starts its nodes; by default as the recipe or the run has it."
        ),
    ] = None,
    endless: Annotated[
        bool | None,
        typer.Option("--endless/--ending", help="It goes on until it is stopped; by default a recipe's does not."),
    ] = None,
    limit_s: Annotated[float | None, typer.Option(min=1, help="It ends after that long either way.")] = None,
    key: Key = "",
    web: Web = "",
    as_json: Json = False,
) -> None:
    """Start a run where the page is."""
    from astraflow.cli import fleet_tables, runs_calls, runs_tables

    body = runs_tables.launch_body(
        recipe=recipe, of=of, overrides=overrides, fleet=fleet, endless=endless, limit_s=limit_s, reason=reason
    )
    done = runs_calls.post(runs_calls.find_web(web), "/launches", body, key=key)
    fleet_tables.show(done, runs_tables.launch_line, as_json=as_json)


@runs.command()
def stop(name: Name, reason: Reason, key: Key = "", web: Web = "", as_json: Json = False) -> None:
    """Ask a run to end; it can be resumed."""
    from astraflow.cli import fleet_tables, runs_calls, runs_tables

    path = f"/launches/{runs_calls.part(name)}/stop"
    done = runs_calls.post(runs_calls.find_web(web), path, {"reason": reason}, key=key)
    fleet_tables.show(done, runs_tables.launch_line, as_json=as_json)


@runs.command()
def resume(name: Name, reason: Reason, key: Key = "", web: Web = "", as_json: Json = False) -> None:
    """Let a run go on where it was."""
    from astraflow.cli import fleet_tables, runs_calls, runs_tables

    path = f"/launches/{runs_calls.part(name)}/resume"
    done = runs_calls.post(runs_calls.find_web(web), path, {"reason": reason}, key=key)
    fleet_tables.show(done, runs_tables.launch_line, as_json=as_json)


@runs.command()
def logs(
    name: Name,
    program: Annotated[str, typer.Option(help="Which of its processes.")] = "launch",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is written.")] = False,
    web: Web = "",
) -> None:
    """The end of a process's log."""
    from astraflow.cli import runs_calls, runs_tables

    door, path, end = runs_calls.find_web(web), f"/launches/{runs_calls.part(name)}/log", None
    while True:
        found = runs_calls.get(door, path, program=program, after=end)
        typer.echo(runs_tables.printable(found["text"]), nl=False)
        if not follow:
            return
        end = found["end"]
        time.sleep(FOLLOW_S)
