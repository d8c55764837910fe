"""Report of a run in the terminal as tables, live or once, or as JSON."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import TypeAdapter
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from astraflow.cli.evaluation.rounds import round_table
from astraflow.cli.inspection.screen import number, share, size
from astraflow.cli.output import Table
from astraflow.cli.run_endpoints import RunEndpoint
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.records import render
from astraflow.contract.reports.report import Event, NodeState, Report
from astraflow.runtime import logs
from astraflow.runtime.retries import TRANSIENT
from astraflow.runtime.service import run_process, run_until


def view(endpoint: RunEndpoint, *, once: bool, as_json: bool) -> int:
    """Shows the reports of the run until stopped, or one report; returns the exit code."""
    logs.configure(level="ERROR")
    console = Console(highlight=False)

    async def main(stop: asyncio.Event) -> None:
        async with endpoint.dial() as link:
            report = await ControlPlaneClient(link).report()  # fails at once for a wrong address or token
        if once:
            _print(console, report, as_json=as_json)
        elif as_json or not console.is_terminal:
            await run_until(stop, _follow_plainly(endpoint, console, as_json=as_json), drain=_no_drain)
        else:
            await run_until(stop, _follow_live(endpoint, console), drain=_no_drain)

    return run_process(main)


def report_tables(report: Report) -> Group:
    """Returns a report as tables: policies, flows, nodes, evaluations and recent events."""
    head = Text(f"{report.run}, up {report.uptime_s:.0f} s", style="bold")
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
    return Group(
        head, *simulated, *durability_notes, _streams(report), _flows(report), _nodes(report), *evaluations, *events
    )


async def _follow_live(endpoint: RunEndpoint, console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        async with aclosing(reports(endpoint)) as following:
            async for report in following:
                content = _unreachable_line(report) if isinstance(report, AstraFlowError) else report_tables(report)
                live.update(content, refresh=True)


async def _follow_plainly(endpoint: RunEndpoint, console: Console, *, as_json: bool) -> None:
    async with aclosing(reports(endpoint)) as following:
        async for report in following:
            if not isinstance(report, AstraFlowError):
                _print(console, report, as_json=as_json)
            elif not as_json:
                console.print(_unreachable_line(report))


async def _no_drain() -> None:
    """Does nothing: watching can end at any time."""


def _repeats_suffix(event: Event) -> str:
    return f" ({event.repeats + 1} times within a minute)" if event.repeats else ""


def report_json(report: Report) -> str:
    """Returns the whole report as a JSON object; numbers that are not finite become null."""
    return TypeAdapter(Report).dump_json(report).decode()


def _print(console: Console, report: Report, *, as_json: bool) -> None:
    if as_json:
        console.out(report_json(report))
    else:
        console.print(report_tables(report))


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
    table = Table("node", "engine", "state", *figures, "versions", "full", "deltas", right=figures, wrapped=())
    for node in report.nodes:
        if node.state is not NodeState.GONE:
            table.add(
                node.facts.name,
                node.facts.engine,
                node.state.value,
                f"{node.leased}/{node.lease_limit}",
                f"{node.episodes_per_s:.1f}",
                f"{node.tokens_per_s:.0f}",
                ", ".join(f"{policy} {version}" for policy, version in node.versions.items()) or "—",
                size(node.counters.get("weight_bytes_full", 0)),
                size(node.counters.get("weight_bytes_delta", 0)),
            )
    return table


RETRY_S = 0.5


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
