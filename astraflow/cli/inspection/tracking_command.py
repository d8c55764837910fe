"""`astraflow track`: export of a run's training metrics to an experiment tracker."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astraflow.cli.options import Address, Authority, TlsCa, TlsClientCertificate, TlsClientKey, Token, TokenFile

if TYPE_CHECKING:
    from astraflow.cli.run_endpoints import RunEndpoint
    from astraflow.contract.reports.report import Report
    from astraflow.tracking.exporter import Exporter
    from astraflow.wire.channel import ClientTls

PROGRESS = "exported.json"
"""File in the tracker's folder with the last exported step of each policy."""


def track(
    tracker: Annotated[str, typer.Argument(metavar="TRACKER", help="tensorboard, wandb, trackio or mlflow.")],
    address: Address = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Export an ended run, given by its folder or name, and exit."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for local files of the tracker.")] = Path("tracking"),
    options: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Option of the tracker, such as project=math; may be repeated."
        ),
    ] = [],  # noqa: B006 (typer copies it)
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Export the training metrics of a run to an experiment tracker, live or after its end.

    Follows the run until it is complete or the command is stopped; started again, it continues where it stopped.
    """
    from astraflow.runtime import logs
    from astraflow.runtime.service import run_process

    logs.configure(level="WARNING")
    if run_dir is not None:
        code = run_process(lambda _: asyncio.to_thread(_export_ended_run, run_dir, tracker, options, out))
    else:
        from astraflow.cli.run_endpoints import client_tls, find_run

        endpoint = find_run(address, token, token_file)
        tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or endpoint.tls
        code = run_process(lambda stop: _follow(endpoint, tls, tracker, options, out, stop))
    raise typer.Exit(code)


def _export_ended_run(run_dir: Path, tracker: str, options: list[str], out: Path) -> None:
    from astraflow.cli.run_directory import find_run_folder
    from astraflow.client.offline_run import offline_reports

    folder = find_run_folder(run_dir)
    run = folder.facts.run
    with _exporter(run, tracker, options, out) as exporter:
        exporter.export(
            offline_reports(
                folder.path, on_skipped=lambda problem: typer.echo(f"skipped a report: {problem}", err=True)
            )
        )


async def _follow(
    endpoint: "RunEndpoint", tls: "ClientTls | None", tracker: str, options: list[str], out: Path, stop: asyncio.Event
) -> None:
    from astraflow.client.control_plane import ControlPlaneClient
    from astraflow.runtime.service import run_until
    from astraflow.wire.channel import dial

    async with dial(endpoint.address, token=endpoint.token, tls=tls) as link:
        run = (await ControlPlaneClient(link).report()).run  # fails at once for a wrong address or token
    with _exporter(run, tracker, options, out) as exporter:
        await run_until(stop, exporter.follow(_all_reports(endpoint, tls)), drain=_no_drain)


async def _all_reports(endpoint: "RunEndpoint", tls: "ClientTls | None") -> AsyncIterator["Report"]:
    """Yields the recorded reports of the run, then each new one, across restarts of the dataflow service."""
    from astraflow.cli.inspection.report_stream import reports
    from astraflow.client.control_plane import ControlPlaneClient
    from astraflow.contract.errors import AstraFlowError
    from astraflow.wire.channel import dial

    async with dial(endpoint.address, token=endpoint.token, tls=tls) as link:
        for resolution_s in (60, 1):
            async for report in ControlPlaneClient(link).iterate_history(limit=10**6, resolution_s=resolution_s):
                yield report
    async with aclosing(reports(endpoint.address, token=endpoint.token, tls=tls)) as stream:
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


async def _no_drain() -> None:
    """Does nothing: the record of exported steps is complete at any time."""
