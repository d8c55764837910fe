"""Report of a run in the terminal as tables, live or once, or as JSON."""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from astraflow.cli.evaluation.rounds import round_table
from astraflow.cli.inspection.screen import PLAIN_EVERY_S, number, progress_lines, share, size
from astraflow.cli.inspection.trends import Trend, read_trends, trend_table
from astraflow.cli.output import Table, show
from astraflow.cli.output import console as output_console
from astraflow.cli.run_endpoints import RunEndpoint
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.record_kinds import Severity
from astraflow.contract.records import fill, render
from astraflow.contract.reports.diagnosis import LimitingCause, diagnose
from astraflow.contract.reports.report import Event, NodeState, Report
from astraflow.runtime import logs
from astraflow.runtime.folders.launch_facts import lineage, read_launch
from astraflow.runtime.folders.run_folders import runs_folder
from astraflow.runtime.retries import TRANSIENT
from astraflow.runtime.service import run_process, run_until


def view(endpoint: RunEndpoint, *, once: bool, as_json: bool) -> int:
    """Shows the reports of the run until stopped, or one report; returns the exit code."""
    logs.configure(level="ERROR")
    console = output_console()

    async def main(stop: asyncio.Event) -> None:
        async with endpoint.dial() as link:
            client = ControlPlaneClient(link)
            report = await client.report()  # fails at once for a wrong address or token
            trends = await read_trends(client, report) if once and not as_json else ()
        if once:
            show(report, lambda report: report_tables(report, trends), as_json=as_json)
        elif as_json or not console.is_terminal:
            await run_until(stop, follow_plainly(endpoint, console, as_json=as_json))
        else:
            await run_until(stop, _follow_live(endpoint, console))

    return run_process(main)


def report_tables(report: Report, trends: Sequence[Trend] = ()) -> Group:
    """Returns a report as tables: policies, flows, nodes, evaluations, recent events, and the course of the run."""
    launch = read_launch(runs_folder() / Path(report.run).name)  # runs of other machines have no folder here
    origin = lineage(launch) if launch else ""
    head = Text(", ".join(filter(None, (report.run, origin, f"up {report.uptime_s:.0f} s"))), style="bold")
    simulated = [Text(f"simulated: {', '.join(report.simulated)}", style="yellow")] if report.simulated else []
    durability_notes = (
        []
        if report.is_durable
        else [Text("not persisted: a restart starts the run from the beginning", style="yellow")]
    )
    events = [
        Text(f"{event.kind.value}  {event.subject}: {render(event)}{_repeats_suffix(event)}", style="dim")
        for event in report.events[-5:]
    ]
    evaluations = [round_table(report.evaluations)] if report.evaluations else []
    course = [trend_table(trends)] if trends else []
    tables = [*course, _streams(report), _flows(report), _nodes(report), *evaluations]
    spaced = [part for table in tables for part in (table, Text(""))]
    return Group(
        head, *simulated, *durability_notes, *_diagnoses(report), *_learning_faults(report), Text(""), *spaced, *events
    )


async def _follow_live(endpoint: RunEndpoint, console: Console) -> None:
    trends: tuple[Trend, ...] = ()
    read_at = -math.inf
    with Live(console=console, auto_refresh=False) as live:
        async with aclosing(reports(endpoint)) as following:
            async for report in following:
                if isinstance(report, AstraFlowError):
                    live.update(_unreachable_line(report), refresh=True)
                    continue
                if report.at >= read_at + TRENDS_EVERY_S:
                    async with endpoint.dial() as link:
                        trends, read_at = await read_trends(ControlPlaneClient(link), report), report.at
                live.update(report_tables(report, trends), refresh=True)


async def follow_plainly(endpoint: RunEndpoint, console: Console, *, as_json: bool) -> None:
    """Prints each report as JSON; otherwise a line for the latest step, at most every five seconds, and every minute
    without a step."""
    printed_at, printed_steps, is_reachable = -math.inf, -1, True
    printed_limits: list[LimitingCause] = []
    async with aclosing(reports(endpoint)) as following:
        async for report in following:
            if isinstance(report, AstraFlowError):
                if is_reachable and not as_json:
                    console.print(_unreachable_line(report))
                is_reachable = False
                continue
            is_reachable = True
            steps = sum(stream.training.steps for stream in report.streams)
            passed_s = report.at - printed_at
            if as_json:
                show(report, report_tables, as_json=True)
            elif passed_s >= (PLAIN_EVERY_S if steps != printed_steps else 60.0):
                printed_at, printed_steps = report.at, steps
                limits = [diagnose(report, stream.policy).cause for stream in report.streams]
                for line in (*progress_lines(report), *(_diagnoses(report) if limits != printed_limits else ())):
                    console.print(Text.assemble(f"{datetime.fromtimestamp(report.at).astimezone():%H:%M:%S}  ", line))
                printed_limits = limits


_STYLES = {Severity.INFO: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "red"}


def _diagnoses(report: Report) -> list[Text]:
    """Returns what limits each policy now, why, and what to do."""
    diagnoses = [diagnose(report, stream.policy) for stream in report.streams]
    several = len(diagnoses) > 1
    return [
        Text(
            f"{f'{diagnosis.policy}: ' if several else ''}{diagnosis.headline}. {diagnosis.explanation}",
            style=_STYLES[diagnosis.severity],
        )
        for diagnosis in diagnoses
    ]


def _learning_faults(report: Report) -> list[Text]:
    """Returns what is wrong with the learning of each policy, since when, and what to do."""
    several = len(report.streams) > 1
    return [
        Text(
            f"{f'{record.subject}: ' if several else ''}{render(record)} (since step {record.values['step']}); "
            f"{fill(LearningFault(record.cause).remedy, record.values)}.",
            style=_STYLES[record.severity],
        )
        for record in report.learning_faults
    ]


def _repeats_suffix(event: Event) -> str:
    return f" ({event.repeats + 1} times within a minute)" if event.repeats else ""


def _unreachable_line(problem: AstraFlowError) -> Text:
    return Text(f"the run is unavailable: {problem}", style="yellow")


def _streams(report: Report) -> Table:
    figures = ("version", "step", "reward", "produced/s", "trained/s", "wait", "buffer", "dropped")
    table = Table("policy", *figures, right=figures, wrapped=())
    for stream in report.streams:
        table.add(
            stream.policy,
            str(stream.version),
            str(stream.training.steps),
            number(stream.training.rewards[-1] if stream.training.rewards else stream.reward_produced),
            f"{stream.produced_per_s:.1f}",
            f"{stream.consumed_per_s:.1f}",
            share(stream.training.wait_fraction),
            str(stream.groups.buffered),
            str(sum(stream.groups.dropped.values())),
        )
    return table


def _flows(report: Report) -> Table:
    table = Table("flow", "issued", "open", "admitted", "dropped", "leases expired", wrapped=("dropped",))
    for flow in report.flows:
        dropped = ", ".join(f"{reason} {count}" for reason, count in flow.dropped.items()) or "0"
        name = f"{flow.id} (paused)" if flow.is_paused else flow.id
        table.add(name, str(flow.issued), str(flow.open), str(flow.admitted), dropped, str(flow.leases_expired))
    return table


def _nodes(report: Report) -> Table:
    figures = ("running", "rollouts/s", "tokens/s")
    table = Table("node", "engine", "state", *figures, "versions", "fetched", right=(*figures, "fetched"), wrapped=())
    for node in report.nodes:
        if node.state is not NodeState.GONE:
            fetched = sum(node.counters.get(f"weight_bytes_{kind}", 0) for kind in ("full", "delta"))
            table.add(
                node.facts.name,
                node.facts.engine,
                node.state.value,
                f"{node.leased}/{node.lease_limit}",
                f"{node.episodes_per_s:.1f}",
                f"{node.tokens_per_s:.0f}",
                ", ".join(f"{policy} {version}" for policy, version in node.versions.items()) or "—",
                size(fetched),
            )
    return table


RETRY_S = 0.5
TRENDS_EVERY_S = 10.0
"""Interval at which the course of the run is read again. Seconds."""


async def reports(endpoint: RunEndpoint) -> AsyncGenerator[Report | AstraFlowError, None]:
    """Yields the reports of the run, one per second, without end; the error while it is unavailable.

    Raises: NotAuthenticated, ProtocolMismatch, InvalidInput.
    """
    async with endpoint.dial() as link:
        client = ControlPlaneClient(link)
        while True:
            try:
                async for report in client.watch_report():
                    yield report
            except TRANSIENT as problem:
                yield problem
            await asyncio.sleep(RETRY_S)
