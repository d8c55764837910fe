"""`astraflow trajectories`: export of a run's sampled trajectories to a bucket or a folder."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, aclosing, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.cli.option_groups import CallGroup, with_groups
from astraflow.cli.options import Address, complete_run

if TYPE_CHECKING:
    import sqlite3

    from astraflow.cli.run_endpoints import RunEndpoint
    from astraflow.contract.reports.queries import TrajectoryPage, TrajectoryQuery
    from astraflow.contract.reports.report import SampledTrajectory
    from astraflow.runtime.folders.run_folders import RunFolder
    from astraflow.tracking.rescoring import Rescore
    from astraflow.weights.store.storage.base import Folder


@with_groups
def trajectories(
    access: CallGroup,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="s3://BUCKET/PREFIX, or a folder, each run its own; with --run-dir also a file NAME.parquet or "
            "NAME.jsonl with one row for each trajectory, NAME.atif.jsonl in the layout of Harbor, and "
            "traces in http://HOST:PORT or a folder NAME.spans of OpenTelemetry, mlflow:URI or trackio:FOLDER.",
        ),
    ],
    address: Address = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Export an ended run, given by its folder or name, and exit.",
            autocompletion=complete_run,
        ),
    ] = None,
    options: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Option of the bucket, such as region=eu-west-1; may be repeated."
        ),
    ] = [],  # noqa: B006 (typer copies it)
    share: Annotated[float, typer.Option(min=0, max=1, help="Share of the groups in a file, or as traces.")] = 1.0,
    reward: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Score each trajectory of a file, or as traces, once more by this reward, such as 'math_answer' or "
            '\'{kind = "f1", tag = "a"}\'.',
        ),
    ] = "",
    every_s: Annotated[float, typer.Option(min=1, help="Seconds between the files of a live run.")] = 60.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the state of exports to buckets.")] = Path(
        "tracking"
    ),
) -> None:
    """Export the sampled trajectories of a run to a bucket or a folder, live or after its end.

    Follows the run until it is complete or the command is stopped; started again, it continues where it stopped.
    """
    from astraflow.runtime import logs
    from astraflow.runtime.config.toml import parse_override
    from astraflow.runtime.service import run_process
    from astraflow.tracking.trace_writers import is_trace_target
    from astraflow.tracking.trajectory_export import export_folder
    from astraflow.tracking.trajectory_rows import ENDINGS

    if run_dir is not None and not to.startswith("s3://") and to.endswith(ENDINGS):
        _write_rows(run_dir, Path(to), share, reward)
        return
    if run_dir is not None and is_trace_target(to):
        _write_traces(run_dir, to, share, reward)
        return
    logs.configure(level="WARNING")
    spec: dict[str, Any] = {}
    for option in options:
        spec.update(parse_override(option))
    with export_folder(to, spec, state=out / "trajectories") as folder:
        if run_dir is not None:
            code = run_process(lambda _: _export_ended_run(run_dir, folder, to))
        else:
            endpoint = access.find_run(address)
            code = run_process(lambda stop: _follow(endpoint, folder, to, every_s, stop))
    raise typer.Exit(code)


@contextmanager
def _opened_archive(run: "RunFolder") -> Iterator["sqlite3.Connection"]:
    """Opens the archive of a run. Raises: CorruptData when it cannot be read."""
    import sqlite3

    from astraflow.archive.connection import ARCHIVE_PATH, open_recorded
    from astraflow.contract.errors import CorruptData

    file = run.path / ARCHIVE_PATH
    try:
        with closing(open_recorded(file)) as database:
            yield database
    except sqlite3.Error as problem:
        raise CorruptData(
            f"cannot read the trajectories in {str(file)!r}: {problem}; restore the file from a copy",
            code="archive.unreadable",
        ) from problem


def _scoring(reward: str) -> "AbstractContextManager[Rescore]":
    """Opens the reward of an option; without one, trajectories stay as they are."""
    from astraflow.runtime.config.toml import parse_override
    from astraflow.tracking.rescoring import rescoring

    if not reward:
        return nullcontext(lambda sample: sample)
    return rescoring(parse_override(f"reward={reward}")["reward"] if "{" in reward else {"kind": reward})


@contextmanager
def _opened_samples(run: "RunFolder", share: float, reward: str) -> Iterator[Iterator[list["SampledTrajectory"]]]:
    """Opens pages of the trajectories of a share of the groups, scored by a reward if one is given."""
    from astraflow.archive.samples import find_trajectories
    from astraflow.tracking.trajectory_rows import sample_pages

    with _opened_archive(run) as database, _scoring(reward) as scored:
        pages = sample_pages(lambda query: find_trajectories(database, query), share)
        yield ([scored(sample) for sample in page] for page in pages)


def _write_rows(run_dir: Path, file: Path, share: float, reward: str) -> None:
    from astraflow.cli.run_directory import find_run_folder
    from astraflow.tracking.trajectory_rows import write_rows

    with _opened_samples(find_run_folder(run_dir), share, reward) as pages:
        count = write_rows(file, pages)
    typer.echo(f"wrote {count} trajectories to {file}")


def _write_traces(run_dir: Path, to: str, share: float, reward: str) -> None:
    from astraflow.cli.run_directory import find_run_folder
    from astraflow.tracking.trace_writers import trace_writer
    from astraflow.tracking.traces import trace_of

    run_folder, count = find_run_folder(run_dir), 0
    opened = trace_writer(to, run=str(run_folder.facts.run))
    with _opened_samples(run_folder, share, reward) as pages, opened as write:
        for page in pages:
            for sample in page:
                write(trace_of(sample))
            count += len(page)
    typer.echo(f"wrote {count} trajectories as traces to {to}")


async def _export_ended_run(run_dir: Path, folder: "Folder", to: str) -> None:
    from astraflow.archive.samples import find_trajectories
    from astraflow.cli.run_directory import find_run_folder
    from astraflow.runtime.clock import SystemClock
    from astraflow.tracking.trajectory_export import TrajectoryExport

    run_folder = find_run_folder(run_dir)
    with _opened_archive(run_folder) as database:

        async def find(query: "TrajectoryQuery") -> "TrajectoryPage":
            return find_trajectories(database, query)

        export = TrajectoryExport(folder, find, location=to)
        await export.export(now=SystemClock().wall(), is_over=True)
    typer.echo(f"exported {export.count} trajectories of {run_folder.facts.run} to {to}")


async def _follow(endpoint: "RunEndpoint", folder: "Folder", to: str, every_s: float, stop: asyncio.Event) -> None:
    from astraflow.cli.inspection.report_viewer import reports
    from astraflow.client.control_plane import ControlPlaneClient
    from astraflow.runtime.clock import SystemClock
    from astraflow.runtime.service import run_until
    from astraflow.tracking.trajectory_export import TrajectoryExport

    async with endpoint.dial() as link:
        client = ControlPlaneClient(link)
        run = (await client.report()).run  # fails at once for a wrong address or token
        typer.echo(f"exporting the trajectories of {run} to {to}")
        export = TrajectoryExport(folder, client.trajectories, location=to)

        async with aclosing(reports(endpoint)) as stream:
            following = export.follow(stream, every_s=every_s, clock=SystemClock(), on_problem=_print_problem)
            await run_until(stop, following)
    typer.echo(f"exported {export.count} trajectories to {to}")


def _print_problem(problem: str) -> None:
    typer.echo(f"the export waits: {problem}", err=True)
