"""Dataflow page: the path of groups as a flow diagram, the main reason for drops, and the state of each stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from astraflow.contract.plugins import PlannedPlugins, PluginKind
from astraflow.contract.reports.report import FlowReport, Report
from web.components import formats
from web.components.downloads import Sheet
from web.components.group_counts import (
    DATAFLOW_REASONS,
    CountBalance,
    CountEntry,
    PluginFigure,
    drop_meaning,
    episode_entries,
    flow_balance,
    partial_rollout_balance,
    stream_balance,
)
from web.dataflow import sankey
from web.dataflow.plugins import PluginRow, planned_changes, plugin_rows
from web.dataflow.stream_cards import StreamView, stream_view
from web.state.dataflow_graph import DataflowCounts, DataflowGraph, Stage, StageEdge, build_graph

PERIODS = {"run": "Since the start", "minute": "Last minute"}
"""Periods that the widths of the diagram can show."""

TITLES = {
    "prompts": "Prompts",
    "tasks": "Tasks",
    "trajectories": "Trajectories",
    "filters": "Filters",
    "routes": "Routes",
    "buffer": "Buffer",
    "batch": "Batch",
    "trainer": "Trainer",
    "dropped": "Dropped",
}

MIN_INSIGHT_SHARE = 0.01
"""Share of groups from which a drop becomes the headline."""

COLUMNS = ("from", "to", "groups", "last_minute", "per_s", "share", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """A stage in the diagram."""

    kind: str
    title: str
    name: str
    count: str
    note: str
    x: float
    y: float
    height: float
    href: str
    """Link to its trajectories; empty where there are none to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandView:
    """An arrow in the diagram. `title` describes it in words."""

    kind: str
    path: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRow:
    """An arrow in the table."""

    source: str
    target: str
    groups: str
    recent_groups: str
    rate: str
    share: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRow:
    """A flow with its pause switch."""

    id: str
    is_paused: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowView:
    """View model of the page."""

    period: str
    insight: str
    span: str
    width: float
    height: float
    stages: Sequence[StageView]
    bands: Sequence[BandView]
    rows: Sequence[EdgeRow]
    flows: Sequence[FlowRow]
    streams: Sequence[StreamView]
    plugins: Sequence[PluginRow]
    planned: Sequence[tuple[str, PlannedPlugins, str]]
    balances: Sequence[CountBalance]
    episodes: Sequence[tuple[str, Sequence[CountEntry]]]
    figures: Sequence[PluginFigure] = ()
    """Figures of plugins, shown in a table of their own."""


def dataflow_view(report: Report, earlier: DataflowCounts | None, *, period: str, run_id: int | None) -> DataflowView:
    """Builds the page. run_id: run whose page lists the trajectories; None without one."""
    graph = build_graph(report.flows, report.streams, earlier, report.at)
    period = period if graph.span_s is not None else "run"
    diagram = _layout(graph, period)
    paths = owner_paths(report)
    return DataflowView(
        period=period,
        insight=insight(graph, period),
        span=formats.duration(graph.span_s) if graph.span_s else "",
        width=sankey.WIDTH,
        height=diagram.height,
        stages=[_stage(stage, graph, diagram.boxes[stage.key], period, report, run_id) for stage in graph.stages],
        bands=[_band(band, graph) for band in diagram.bands],
        rows=[_row(edge, graph, report.plugin_kinds) for edge in graph.edges],
        flows=[_flow(flow) for flow in report.flows],
        streams=[stream_view(stream, report) for stream in report.streams],
        plugins=plugin_rows(report, paths),
        planned=planned_changes(report, paths),
        balances=[
            *(flow_balance(flow, report.plugin_kinds) for flow in report.flows),
            *(stream_balance(stream, report.plugin_kinds) for stream in report.streams),
            *(partial_rollout_balance(flow) for flow in report.flows if flow.partial_rollouts.get("handed_back")),
        ],
        episodes=[(flow.id, episode_entries(flow)) for flow in report.flows],
    )


def owner_paths(report: Report) -> dict[str, str]:
    """Returns the address at which the plugins of each flow and each policy are changed."""
    flows = {f"flow {flow.id}": f"/flows/{quote(flow.id, safe='')}/plugins" for flow in report.flows}
    streams = {
        f"policy {stream.policy}": f"/policies/{quote(stream.policy, safe='')}/sampler" for stream in report.streams
    }
    return flows | streams


def insight(graph: DataflowGraph, period: str) -> str:
    """Returns the headline: the most frequent reason why groups do not reach a trainer."""
    finished = sum(_value(edge, period) for edge in graph.edges if graph.stage(edge.target).kind == "trajectories")
    suffix = " in the last minute" if period == "minute" else ""
    if not finished:
        return f"No group has finished{suffix or ' yet'}"
    drops: dict[str, int] = {}
    for edge in graph.edges:
        target = graph.stage(edge.target)
        if target.kind == "dropped":
            drops[target.subject] = drops.get(target.subject, 0) + _value(edge, period)
    reason, number = max(drops.items(), key=lambda item: item[1], default=("", 0))
    if number / finished < MIN_INSIGHT_SHARE:
        return f"Nearly every group reaches its trainer{suffix}"
    meaning = DATAFLOW_REASONS.get(reason)
    cause = f"dropped ({meaning})" if meaning else f"dropped by the filter {reason}"
    return f"{formats.percent(number / finished)} of groups are {cause}{suffix}"


def dataflow_sheet(report: Report, earlier: DataflowCounts | None) -> Sheet:
    """Returns the table of arrows as a sheet for download."""
    graph = build_graph(report.flows, report.streams, earlier, report.at)
    rows = [
        (
            stage_name(graph.stage(edge.source)),
            stage_name(graph.stage(edge.target)),
            edge.groups,
            edge.recent_groups if edge.per_s is not None else None,
            None if edge.per_s is None else round(edge.per_s, 4),
            _share(edge, graph),
            _meaning(graph.stage(edge.target), report.plugin_kinds),
        )
        for edge in graph.edges
    ]
    return Sheet(name="astraflow-dataflow", columns=COLUMNS, rows=rows)


def stage_name(stage: Stage) -> str:
    """Returns the name of a stage in words.

    >>> stage_name(Stage(key="k", kind="filters", subject="train", column=3))
    'Filters (train)'
    """
    return f"{TITLES[stage.kind]} ({stage.subject})" if stage.subject else TITLES[stage.kind]


def _value(arrow: StageEdge, period: str) -> int:
    return arrow.recent_groups if period == "minute" else arrow.groups


def _layout(graph: DataflowGraph, period: str) -> sankey.Layout:
    ranked = sorted(graph.stages, key=lambda stage: (stage.column, stage.kind == "dropped"))
    positions = [sankey.StagePosition(key=stage.key, column=stage.column) for stage in ranked]
    links = [
        sankey.StageLink(source=edge.source, target=edge.target, value=_value(edge, period)) for edge in graph.edges
    ]
    return sankey.diagram_layout(positions, links)


def _stage(
    stage: Stage, graph: DataflowGraph, box: sankey.Box, period: str, report: Report, run_id: int | None
) -> StageView:
    incoming = [edge for edge in graph.edges if edge.target == stage.key]
    outgoing = [edge for edge in graph.edges if edge.source == stage.key]
    through = incoming or outgoing
    rates = [edge.per_s for edge in through if edge.per_s is not None]
    rate = f"{formats.rate(sum(rates))}/s" if rates else ""
    count = formats.count(sum(_value(edge, period) for edge in through))
    if stage.kind == "dropped" and incoming:
        count += f" · {formats.percent(_share(incoming[0], graph))}"
    is_dropped = stage.kind == "dropped"
    query = urlencode({"outcome": stage.subject})
    return StageView(
        kind=stage.kind,
        title=formats.shortened(stage.subject, at_most=18) if is_dropped else TITLES[stage.kind],
        name="" if is_dropped else formats.shortened(stage.subject, at_most=16),
        count=count,
        note=" · ".join(part for part in (rate, _current_text(stage, report)) if part),
        x=box.x,
        y=box.y,
        height=box.height,
        href=f"/runs/{run_id}?{query}#samples" if is_dropped and run_id is not None else "",
    )


def _current_text(stage: Stage, report: Report) -> str:
    if stage.kind == "trajectories":
        flow = next(flow for flow in report.flows if flow.id == stage.subject)
        accepted = flow.episodes.get("accepted", 0)
        return f"{formats.count(accepted)} episodes"
    words = {"tasks": "out now", "buffer": "buffered now", "batch": "in a batch now"}
    return "" if stage.current_groups is None else f"{formats.count(stage.current_groups)} {words[stage.kind]}"


def _band(band: sankey.Band, graph: DataflowGraph) -> BandView:
    edge = next(edge for edge in graph.edges if (edge.source, edge.target) == (band.source, band.target))
    source, target = graph.stage(band.source), graph.stage(band.target)
    rate = "" if edge.per_s is None else f", {formats.rate(edge.per_s)}/s"
    title = f"{stage_name(source)} to {stage_name(target)}: {formats.several(edge.groups, 'group')}{rate}"
    return BandView(kind=target.kind, path=band.path, title=title)


def _share(arrow: StageEdge, graph: DataflowGraph) -> float | None:
    """Returns the share of the groups that entered the arrow's source stage; None for the first stage."""
    total = graph.groups_into(arrow.source)
    return round(arrow.groups / total, 6) if total else None


def _row(arrow: StageEdge, graph: DataflowGraph, kinds: Sequence[PluginKind]) -> EdgeRow:
    target = graph.stage(arrow.target)
    return EdgeRow(
        source=stage_name(graph.stage(arrow.source)),
        target=stage_name(target),
        groups=formats.count(arrow.groups),
        recent_groups=formats.MISSING if arrow.per_s is None else formats.count(arrow.recent_groups),
        rate=formats.rate(arrow.per_s),
        share=formats.percent(_share(arrow, graph)),
        meaning=_meaning(target, kinds),
    )


def _meaning(target: Stage, kinds: Sequence[PluginKind]) -> str:
    if target.kind != "dropped":
        return ""
    return drop_meaning(target.subject, kinds) or "rejected by this filter"


def _flow(flow: FlowReport) -> FlowRow:
    queued, leased = formats.several(flow.tasks_queued, "task"), formats.count(flow.tasks_leased)
    return FlowRow(
        id=flow.id,
        is_paused=flow.is_paused,
        note=f"{queued} queued, {leased} with nodes; {formats.several(flow.leases_expired, 'lease')} expired, "
        f"{formats.several(flow.tasks_returned, 'task')} returned",
    )
