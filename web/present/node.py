"""The page of one node: how it came to work, how fast it was, what it fetches, and why it is slow if it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.fleet import Instance, InstanceState
from astraflow.contract.reports import NodeState
from web.feed.node_table import NodeRow, NodeTable
from web.history.reading import Row
from web.present import formats, scales
from web.present.causes import with_cause
from web.present.cells import Cell
from web.present.node_cells import row_cells
from web.present.series import as_sheet
from web.present.slowness import Slowness, slowness
from web.present.weight_page import LinkRow, link_row
from web.reading.exports import Sheet

CHART_HEIGHT = 120
RATES = ("episodes", "tokens", "busy", "lag")
GAP_S = 90.0
"""Rows farther apart are not joined by a line: the node was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One station on the way of a node."""

    label: str
    at: float | None
    """Unix seconds; None for what did not happen yet."""
    took: str
    """Until the next one."""
    is_now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChart:
    """Episodes per second over a stretch of time."""

    finding: str
    path: str
    area: str
    height: int
    y_ticks: Sequence[tuple[float, str]]
    x_ticks: Sequence[tuple[float, str]]
    rows: Sequence[tuple[float, str, str, str, str]]
    """Time, episodes and tokens a second, busy, versions behind: the same as a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePage:
    """Everything on it."""

    id: str
    name: str
    cells: dict[str, Cell]
    facts: Sequence[tuple[str, str]]
    stages: Sequence[Stage]
    stages_from: str
    slowness: Slowness
    chart: RateChart | None
    links: Sequence[LinkRow]
    errors: Sequence[str]
    may_drain: bool
    is_simulated: bool


def node_page(row: NodeRow, table: NodeTable, machine: Instance | None, history: Sequence[Row]) -> NodePage:
    """One node beside its like. history: its numbers, oldest first."""
    node, facts = row.node, row.node.facts
    like = [other for other in table.rows if other.node.facts.pool == facts.pool]
    return NodePage(
        id=node.id,
        name=facts.name,
        cells={key: Cell(text=text, tone=tone) for key, (text, tone) in row_cells(row, table.at).items()},
        facts=_facts(row, machine),
        stages=_stages(row, machine, table.at),
        stages_from="the fleet's ledger" if machine else "what it reports",
        slowness=slowness(row, like),
        chart=rate_chart(history),
        links=[link_row(row.lag or 0, node, link) for link in node.links],
        errors=list(reversed(node.errors)),
        may_drain=node.state in (NodeState.READY, NodeState.JOINING),
        is_simulated=facts.is_simulated,
    )


def rate_chart(history: Sequence[Row]) -> RateChart | None:
    """None while nothing is kept of the node."""
    found = [(at, numbers) for at, numbers in history if numbers.get("episodes") is not None]
    if len(found) < 2:
        return None
    rates = [numbers["episodes"] or 0.0 for _, numbers in found]
    axis = scales.y_axis(rates, at_least=1.0)
    window = scales.window_of(found[0][0], found[-1][0], None)
    places: list[tuple[float, float | None]] = []
    for (at, _), rate, before in zip(found, rates, [found[0][0], *(at for at, _ in found)], strict=False):
        if at - before > max(GAP_S, 2.5 * (found[-1][0] - found[0][0]) / len(found)):
            places.append((window.place(before), None))
        places.append((window.place(at), axis.place(rate, CHART_HEIGHT)))
    mean = sum(rates) / len(rates)
    return RateChart(
        finding=f"{formats.rate(mean)} episodes/s on average, {formats.rate(min(rates))} to {formats.rate(max(rates))}",
        path=scales.path(places),
        area=scales.area(places, axis.place(0.0, CHART_HEIGHT)),
        height=CHART_HEIGHT,
        y_ticks=[(axis.place(tick, CHART_HEIGHT), scales.tick_text(tick, "rate")) for tick in axis.ticks],
        x_ticks=scales.x_ticks(window),
        rows=[
            (
                at,
                formats.rate(numbers["episodes"]),
                formats.rate(numbers["tokens"]),
                formats.percent(numbers["busy"]),
                formats.count(numbers["lag"]),
            )
            for at, numbers in found[::-1][:30]
        ],
    )


def rate_sheet(name: str, history: Sequence[Row]) -> Sheet:
    """What the chart draws."""
    found = [(at, numbers) for at, numbers in history if numbers.get("episodes") is not None]
    return as_sheet(f"astraflow-node-{name}".replace("/", "_").replace('"', "_"), found, RATES)


def _facts(row: NodeRow, machine: Instance | None) -> list[tuple[str, str]]:
    facts = row.node.facts
    spot = {True: "spot", False: "on demand", None: ""}[row.is_spot]
    found = [
        ("Id", str(row.node.id)),
        ("Pool", facts.pool),
        ("Type", f"{row.kind}, {spot}" if spot else row.kind),
        ("Region", facts.region),
        ("Engine", facts.engine),
        ("Hardware", facts.hardware),
        ("Capacity", formats.several(facts.capacity, "episode") + " at once"),
        ("Price", f"{formats.dollars(row.usd_per_hour)} an hour" if row.usd_per_hour else ""),
        ("Software", f"astraflow {facts.software}"),
        ("Leases that expired", formats.count(row.node.lease_expiries)),
        ("Machine", f"{machine.provider} {machine.handle}".strip() if machine else ""),
        ("Asked for by", f"{machine.actor}: {machine.reason}" if machine else ""),
    ]
    return [(label, text) for label, text in found if text]


def _stages(row: NodeRow, machine: Instance | None, now: float) -> list[Stage]:
    node = row.node
    is_joined = node.state is not NodeState.JOINING
    if machine is None:
        known: list[tuple[str, float | None, bool]] = [
            ("Joined", node.joined_at, node.state is NodeState.JOINING),
            ("Ready", None, node.state is NodeState.READY),
        ]
        ending = {NodeState.DRAINING: "Draining", NodeState.LOST: "Lost", NodeState.GONE: "Gone"}.get(node.state)
        if ending:
            ending = with_cause(ending, node.cause)
            known.append((ending, now - node.beat_age_s if node.state is NodeState.LOST else None, True))
        return [
            Stage(label=label, at=at, took="", is_now=is_now)
            for label, at, is_now in known
            if at is not None or is_now or (label == "Ready" and is_joined)
        ]
    state = machine.state
    stations = [
        ("Requested", machine.intended_at, state is InstanceState.INTENDED),
        ("Provisioning, booting", machine.launched_at, state is InstanceState.PENDING),
        ("Warming", node.joined_at if machine.ready_at is None or node.joined_at <= machine.ready_at else None,
         state is InstanceState.RUNNING),
        ("Ready", machine.ready_at, state is InstanceState.READY),
        ("Draining", machine.draining_at, state is InstanceState.DRAINING),
        ("Retiring", machine.retiring_at, state is InstanceState.RETIRING),
        ("Gone", machine.gone_at, state is InstanceState.GONE),
    ]  # fmt: skip
    happened = [station for station in stations if station[1] is not None]
    ends = [*(at for _, at, _ in happened[1:]), now]
    return [
        Stage(
            label=with_cause(label, machine.cause) if at == machine.left_at else label,
            at=at,
            took=formats.duration(max(0.0, end - (at or end))),
            is_now=is_now,
        )
        for (label, at, is_now), end in zip(happened, ends, strict=True)
        if end is not None
    ]
