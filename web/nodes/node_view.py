"""Page of one node: lifecycle, production, weight fetches, and the cause when it is slow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.fleet.instances import Instance, InstanceState
from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.reports.report import NodeReport, NodeState
from astraflow.contract.weight_reports import LinkReport
from web.charts.panels import Panel, PanelView, Series, panel_view
from web.charts.tables import as_sheet, columns_json
from web.components import formats
from web.components.downloads import Sheet
from web.components.live_sessions import LiveSessionsView, live_sessions, runs_agents
from web.components.live_texts import LiveText
from web.components.texts import with_cause
from web.history.series_queries import Row
from web.live.node_texts import build_node_texts
from web.nodes.slowness import Slowness, slowness
from web.state.node_table import NodeRow, NodeTable

RATE_VALUES = ("episodes", "tokens", "busy", "lag")

_PROBATION = "gets a few tasks at a time, until it returns results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a node's lifecycle."""

    label: str
    at: float | None
    """Unix seconds; None for a stage that was not reached, or whose time is unknown."""
    duration: str
    """Time until the next stage; empty when unknown."""
    is_now: bool


RATE = Panel(
    name="rate",
    label="Episodes per second, the last hour",
    series=(Series(value="episodes", label="episodes", style="main area"),),
    format="rate",
    table="node",
    from_zero=True,
    at_least=1.0,
    height=120,
    reason="The node was absent",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChart:
    """Episodes per second over time."""

    insight: str
    view: PanelView
    table: dict[str, Any]
    """Table of the chart, see `web.charts.tables`."""
    rows: Sequence[tuple[float, str, str, str, str]]
    """Rows of the table: time, episodes per second, tokens per second, busy share, versions behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetails:
    """View model of the page."""

    id: str
    name: str
    live_texts: dict[str, LiveText]
    facts: Sequence[tuple[str, str]]
    metrics: Sequence[tuple[str, str]]
    """Meaning and value of each metric that the node reports."""
    stages: Sequence[Stage]
    stages_from: str
    slowness: Slowness
    chart: RateChart | None
    links: Sequence[LinkReport]
    errors: Sequence[str]
    may_drain: bool
    is_simulated: bool
    sessions: LiveSessionsView | None
    """Agents' sessions on the node; None on a node without a flow of agents."""


def node_page(row: NodeRow, table: NodeTable, machine: Instance | None, history: Sequence[Row]) -> NodeDetails:
    """Builds the page. machine: the node's instance, if a fleet started it. history: its figures, oldest first."""
    node, facts = row.node, row.node.facts
    peers = [other for other in table.rows if other.node.facts.pool == facts.pool]
    return NodeDetails(
        id=node.id,
        name=facts.name,
        live_texts={
            key: LiveText(text=text, tone=tone) for key, (text, tone) in build_node_texts(row, table.at).items()
        },
        facts=_facts(row, machine),
        metrics=list(metric_texts(node)),
        stages=_stages(row, machine, table.at),
        stages_from="the fleet's ledger" if machine else "its reports",
        slowness=slowness(row, peers),
        chart=rate_chart(history),
        links=node.links,
        errors=list(reversed(node.errors)),
        may_drain=node.state in (NodeState.READY, NodeState.JOINING),
        is_simulated=facts.is_simulated,
        sessions=live_sessions([node]) if runs_agents(node) else None,
    )


def metric_texts(node: NodeReport) -> Iterator[tuple[str, str]]:
    """Yields meaning and value, with its unit, of each metric that a node reports: gauges, then counters."""
    for metrics, values in ((NODE_GAUGES, node.gauges), (NODE_COUNTERS, node.counters)):
        for name, metric in metrics.items():
            if name in values:
                yield metric.meaning, _with_unit(values[name], metric.unit)


def _with_unit(value: float, unit: str) -> str:
    match unit:
        case "seconds":
            return formats.seconds(value)
        case "bytes":
            return formats.size(value)
        case "ratio":
            return formats.share(value)
        case _:
            return formats.with_unit(value, unit.replace("_per_second", "/s"))


def rate_chart(history: Sequence[Row]) -> RateChart | None:
    """Returns the production of a node; None with fewer than two recorded points."""
    points = [(at, numbers) for at, numbers in history if numbers.get("episodes") is not None]
    if len(points) < 2:
        return None
    rates = [numbers["episodes"] or 0.0 for _, numbers in points]
    mean = sum(rates) / len(rates)
    return RateChart(
        insight=f"{formats.rate(mean)} episodes/s on average, {formats.rate(min(rates))} to {formats.rate(max(rates))}",
        view=panel_view(RATE, points),
        table=columns_json(points, ["episodes"], kinds={"time": "at"}),
        rows=[
            (
                at,
                formats.rate(numbers["episodes"]),
                formats.rate(numbers["tokens"]),
                formats.percent(numbers["busy"]),
                formats.count(numbers["lag"]),
            )
            for at, numbers in points[::-1][:30]
        ],
    )


def rate_sheet(name: str, history: Sequence[Row]) -> Sheet:
    """Returns the data of the chart as a sheet for download."""
    rows = [(at, numbers) for at, numbers in history if numbers.get("episodes") is not None]
    return as_sheet(f"astraflow-node-{name}".replace("/", "_").replace('"', "_"), rows, RATE_VALUES)


def _facts(row: NodeRow, instance: Instance | None) -> list[tuple[str, str]]:
    facts = row.node.facts
    spot = {True: "spot", False: "on demand", None: ""}[row.is_spot]
    labelled = [
        ("Id", str(row.node.id)),
        ("Pool", facts.pool),
        ("Type", f"{row.kind}, {spot}" if spot else row.kind),
        ("Region", facts.region),
        ("Engine", facts.engine),
        ("Precision", facts.precision),
        ("Hardware", facts.hardware),
        ("Policies", ", ".join(facts.policies)),
        ("Capacity", "at most " + formats.several(facts.capacity, "episode") + " at once"),
        ("Price", f"{formats.dollars(row.usd_per_hour)} an hour" if row.usd_per_hour else ""),
        ("Software", f"astraflow {facts.software}"),
        ("Expired leases", formats.count(row.node.lease_expiries)),
        ("Oldest task", formats.duration(row.node.oldest_lease_s) if row.node.leased else ""),
        ("Probation", _PROBATION if row.node.is_on_probation else ""),
        ("Instance", f"{instance.provider} {instance.handle}".strip() if instance else ""),
        ("Requested by", f"{instance.actor}: {instance.reason}" if instance else ""),
    ]
    return [(label, text) for label, text in labelled if text]


def _stages(row: NodeRow, instance: Instance | None, now: float) -> list[Stage]:
    node = row.node
    is_joined = node.state is not NodeState.JOINING
    if instance is None:
        stages: list[tuple[str, float | None, bool]] = [
            ("Joined", node.joined_at, node.state is NodeState.JOINING),
            ("Ready", None, node.state is NodeState.READY),
        ]
        ending = {NodeState.DRAINING: "Draining", NodeState.LOST: "Lost", NodeState.GONE: "Gone"}.get(node.state)
        if ending:
            ending = with_cause(ending, node.cause)
            stages.append((ending, now - node.heartbeat_age_s if node.state is NodeState.LOST else None, True))
        return [
            Stage(label=label, at=at, duration="", is_now=is_now)
            for label, at, is_now in stages
            if at is not None or is_now or (label == "Ready" and is_joined)
        ]
    state = instance.state
    stages = [
        ("Requested", instance.intended_at, state is InstanceState.INTENDED),
        ("Provisioning, booting", instance.launched_at, state is InstanceState.PENDING),
        ("Warming", node.joined_at if instance.ready_at is None or node.joined_at <= instance.ready_at else None,
         state is InstanceState.RUNNING),
        ("Ready", instance.ready_at, state is InstanceState.READY),
        ("Draining", instance.draining_at, state is InstanceState.DRAINING),
        ("Retiring", instance.retiring_at, state is InstanceState.RETIRING),
        ("Gone", instance.gone_at, state is InstanceState.GONE),
    ]  # fmt: skip
    happened = [stage for stage in stages if stage[1] is not None]
    ends = [*(at for _, at, _ in happened[1:]), now]
    return [
        Stage(
            label=with_cause(label, instance.cause) if at == instance.left_at else label,
            at=at,
            duration=formats.duration(max(0.0, end - (at or end))),
            is_now=is_now,
        )
        for (label, at, is_now), end in zip(happened, ends, strict=True)
        if end is not None
    ]
