"""Commands that show a run or follow it: `report`, `view`, `plugins`, `set-aside`, `track`."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.cli.option_groups import CallGroup, with_groups
from astraflow.cli.options import Address, Json, Port, complete_run
from astraflow.contract.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from astraflow.cli.run_endpoints import RunEndpoint
    from astraflow.contract.reports.report import Report
    from astraflow.tracking.exporter import Exporter


@with_groups
def report(
    access: CallGroup,
    address: Address = "",
    once: Annotated[bool, typer.Option("--once", help="Print the current report and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Watch an active run in the terminal. `astraflow view RUN` shows an ended one."""
    from astraflow.cli.inspection.report_viewer import view

    endpoint = access.find_run(address)
    raise typer.Exit(view(endpoint, once=once, as_json=as_json))


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Folders or names of runs; default: all runs of this machine.",
            autocompletion=complete_run,
        ),
    ] = None,
    port: Port = 0,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the run to one HTML file, which opens without a network, and end."),
    ] = None,
) -> None:
    """Show runs from their folders: serves a read-only page of what was recorded, without the services."""
    from astraflow.cli.inspection.archive_viewer import export_run, view_runs
    from astraflow.cli.run_directory import find_run_folder

    folders = [find_run_folder(run) for run in runs or ()]
    if export is None:
        raise typer.Exit(view_runs(folders, port=port, print_message=typer.echo))
    if len(folders) != 1:
        raise InvalidInput(
            f"cannot export {len(folders)} runs to one file: an export has one run; name one run",
            code="export.one_run",
        )
    export_run(folders[0], export)
    typer.echo(f"{export}: {export.stat().st_size / 1e6:.1f} MB; check it with `astraflow check export {export}`")


Flow = Annotated[str, typer.Option(help="Change the selector or the filters of this flow.")]
Policy = Annotated[str, typer.Option(help="Change the sampler of this policy's stream.")]
Selector = Annotated[str, typer.Option(metavar="JSON", help="""Selector of a flow, such as '{"kind": "greso"}'.""")]
Filters = Annotated[
    str, typer.Option(metavar="JSON", help="""All filters of a flow in order, such as '[{"kind": "informative"}]'.""")
]
Sampler = Annotated[
    str, typer.Option(metavar="JSON", help="""Sampler of a policy, such as '{"kind": "replay", "ratio": 0.3}'.""")
]
File = Annotated[
    str, typer.Option(metavar="FILE", help="Python file on the host of dataflow that registers the new plugins.")
]
Reason = Annotated[
    str, typer.Option(help="Reason, recorded in the run's events with your name; required for a change.")
]


@with_groups
def plugins(
    access: CallGroup,
    address: Address = "",
    flow: Flow = "",
    policy: Policy = "",
    selector: Selector = "",
    filters: Filters = "",
    sampler: Sampler = "",
    file: File = "",
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Show the data algorithms of a run, or change them from the next version on, without a restart."""
    from astraflow.cli.inspection.plugins import change_plugins, read_change, show_plugins

    change = read_change(
        flow=flow, policy=policy, selector=selector, filters=filters, sampler=sampler, file=file, reason=reason
    )
    endpoint = access.find_run(address)
    if change is None:
        show_plugins(endpoint, as_json=as_json)
    else:
        change_plugins(endpoint, change)


_KEPT = ("weights/*/*.damaged", "dataflow/*.unreadable.sqlite")
"""Damaged files that the weight store and dataflow's archive keep beside the others."""


def set_aside(
    run_dir: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder or name of a run, active or ended.", autocompletion=complete_run),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write the data there as JSON lines, one file each.")
    ] = None,
    names: Annotated[list[str], typer.Option("--name", metavar="NAME", help="Only this file; may be repeated.")] = [],  # noqa: B006 (typer copies it)
    as_json: Json = False,
) -> None:
    """List the batches of a run that ended their trainer and the stored records that could not be read; export them.

    The first line of an exported file has a summary; each other line is a row of the batch, or a record.
    """
    from astraflow.archive.set_aside import SET_ASIDE_PATH, SetAsideFiles, export
    from astraflow.cli.output import show
    from astraflow.cli.run_directory import find_run_folder
    from astraflow.contract.errors import InvalidInput

    run = find_run_folder(run_dir).path
    folder = run / SET_ASIDE_PATH
    files = [file for file in SetAsideFiles(folder).files() if not names or file.name in names]
    unknown = set(names) - {file.name for file in files}
    if unknown:
        raise InvalidInput(
            f"cannot find {min(unknown)!r}: {str(folder)!r} has no such file; list the names without --name",
            code="set_aside.unknown",
        )
    if to is not None:
        show([str(export(file, to)) for file in files], _exported_lines, as_json=as_json)
        return
    kept = [] if names else sorted(path for pattern in _KEPT for path in run.glob(pattern))
    rows = [
        {"name": file.name, "at": file.at, "size_bytes": file.size_bytes, "summary": file.summary or "unreadable"}
        for file in files
    ]
    rows += [
        {
            "name": str(path.relative_to(run)),
            "at": path.stat().st_mtime,
            "size_bytes": path.stat().st_size,
            "summary": "damaged, no longer used",
        }
        for path in kept
    ]
    show(rows, _set_aside_table, as_json=as_json)


def _exported_lines(files: Sequence[str]) -> "RenderableType":
    from rich.text import Text

    return Text("\n".join(f"exported {file}" for file in files) or "nothing was set aside")


def _set_aside_table(rows: Sequence[Mapping[str, Any]]) -> "RenderableType":
    from rich.text import Text

    from astraflow.cli.output import Table

    table = Table("name", "time (UTC)", "bytes", "summary", right=("bytes",))
    for row in rows:
        at = datetime.fromtimestamp(row["at"], UTC)
        table.add(row["name"], f"{at:%Y-%m-%d %H:%M:%S}", str(row["size_bytes"]), row["summary"])
    return table if rows else Text("nothing was set aside")


PROGRESS = "exported.json"
"""File in the tracker's folder with the last exported step of each policy."""


@with_groups
def track(
    access: CallGroup,
    tracker: Annotated[str, typer.Argument(metavar="TRACKER", help="tensorboard, wandb, trackio or mlflow.")],
    address: Address = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Export an ended run, given by its folder or name, and exit.",
            autocompletion=complete_run,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for local files of the tracker.")] = Path("tracking"),
    options: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Option of the tracker, such as project=math; may be repeated."
        ),
    ] = [],  # noqa: B006 (typer copies it)
) -> None:
    """Export the training metrics of a run to an experiment tracker, live or after its end.

    Follows the run until it is complete or the command is stopped; started again, it continues where it stopped.
    """
    from astraflow.runtime import logs
    from astraflow.runtime.service import run_process

    logs.configure(level="WARNING")
    if run_dir is not None:
        code = run_process(lambda _: _export_ended_run(run_dir, tracker, options, out))
    else:
        endpoint = access.find_run(address)
        code = run_process(lambda stop: _follow(endpoint, tracker, options, out, stop))
    raise typer.Exit(code)


async def _export_ended_run(run_dir: Path, tracker: str, options: list[str], out: Path) -> None:
    from astraflow.cli.run_directory import find_run_folder
    from astraflow.client.offline_run import OfflineRun, last_report
    from astraflow.contract.reports.queries import MAX_ORDINAL

    folder = find_run_folder(run_dir)
    report = last_report(folder.path)
    if report is None:
        raise InvalidInput(
            f"cannot export the run {folder.facts.run!r}: its archive has no readable report; restore it from a "
            "copy, or give the folder of another run",
            code="archive.no_reports",
        )
    with _exporter(folder.facts.run, tracker, options, out) as exporter:
        steps = {stream.policy: MAX_ORDINAL for stream in report.streams}
        await exporter.export(OfflineRun(folder.path), steps)


async def _follow(endpoint: "RunEndpoint", tracker: str, options: list[str], out: Path, stop: asyncio.Event) -> None:
    from astraflow.client.control_plane import ControlPlaneClient
    from astraflow.runtime.service import run_until

    async with endpoint.dial() as link:
        client = ControlPlaneClient(link)
        run = (await client.report()).run  # fails at once for a wrong address or token
        with _exporter(run, tracker, options, out) as exporter:
            await run_until(stop, exporter.follow(_new_reports(endpoint), client))


async def _new_reports(endpoint: "RunEndpoint") -> AsyncIterator["Report"]:
    """Yields the report of each second, across restarts of the dataflow service."""
    from astraflow.cli.inspection.report_viewer import reports
    from astraflow.contract.errors import AstraFlowError

    async with aclosing(reports(endpoint)) as stream:
        is_available = True
        async for item in stream:
            if not isinstance(item, AstraFlowError):
                is_available = True
                yield item
            elif is_available:
                is_available = False
                typer.echo(f"the run is unavailable, waiting for it: {item}", err=True)


@contextmanager
def _exporter(run: str, tracker: str, options: list[str], out: Path) -> Iterator["Exporter"]:
    from astraflow.runtime.config.toml import parse_override
    from astraflow.tracking import trackers
    from astraflow.tracking.base import TrackedRun
    from astraflow.tracking.exporter import Exporter

    spec: dict[str, Any] = {"kind": tracker}
    for option in options:
        spec.update(parse_override(option))
    folder = out / tracker
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]", "-", run)
    target = trackers.build(spec, TrackedRun(name=name, folder=folder, id=name))
    try:
        exporter = Exporter(target, folder / f"{name}.{PROGRESS}")
        typer.echo(f"exporting {run} to {target.location}")
        yield exporter
        typer.echo(f"exported {exporter.steps} steps to {target.location}")
    finally:
        target.close()
