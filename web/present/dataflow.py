"""The page of the dataflow: the path of groups as a diagram that states its finding, and what holds it back."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from astraflow.contract.reports import FlowReport, Report
from web.feed.arrows import FAILED, Arrow, Counts, Graph, Stage, graph_of
from web.present import formats, sankey
from web.present.ledger import Balance, Entry, Figure, episode_entries, flow_balance, prefix_balance, stream_balance
from web.present.plugins import PlannedRow, PluginRow, planned_rows, plugin_rows
from web.present.stream_cards import StreamView, stream_view
from web.reading.exports import Sheet

OVERS = {"run": "Since it began", "minute": "Last minute"}
"""What the widths of the diagram are about."""

REASONS = {
    "informative": ("filtered as uninformative", "all members scored alike: nothing to learn"),
    "failed": ("lost because too many members failed", "too many members failed"),
    "length": ("filtered for their length", "too many answers cut off, too short or too long"),
    "repetition": ("filtered as repetitive", "too many answers repeat themselves"),
    "off_policy": ("filtered as off-policy", "too many tokens of older versions"),
    "stale": ("dropped as too stale", "older than max_staleness allows"),
    "full": ("dropped at a full buffer", "made for another policy while this one's trainer was stalled"),
}
"""For each known reason of a drop: the end of the finding's sentence, and what it means."""

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

FINDS_FROM = 0.01
"""Share of groups from which a drop is the finding."""

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
    """Where its trajectories can be looked at; empty where they cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandView:
    """An arrow in the diagram. `title` says it in words."""

    kind: str
    path: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowRow:
    """An arrow in the table."""

    source: str
    target: str
    groups: str
    lately: str
    rate: str
    share: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLine:
    """A flow with its switch."""

    id: str
    is_paused: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowView:
    """All of it."""

    over: str
    finding: str
    span: str
    width: float
    height: float
    stages: Sequence[StageView]
    bands: Sequence[BandView]
    rows: Sequence[ArrowRow]
    flows: Sequence[FlowLine]
    streams: Sequence[StreamView]
    plugins: Sequence[PluginRow]
    planned: Sequence[PlannedRow]
    balances: Sequence[Balance]
    episodes: Sequence[tuple[str, Sequence[Entry]]]
    figures: Sequence[Figure] = ()
    """Of plug-ins: they stand in their own table here."""


def dataflow_view(report: Report, earlier: Counts | None, *, over: str, run_id: int | None) -> DataflowView:
    """What there is to see now. run_id: of the page with the run's trajectories."""
    graph = graph_of(report.flows, report.streams, earlier, report.at)
    over = over if graph.span_s is not None else "run"
    placed = _layout(graph, over)
    paths = owner_paths(report)
    return DataflowView(
        over=over,
        finding=finding(graph, over),
        span=formats.duration(graph.span_s) if graph.span_s else "",
        width=sankey.WIDTH,
        height=placed.height,
        stages=[_stage(stage, graph, placed.boxes[stage.key], over, report, run_id) for stage in graph.stages],
        bands=[_band(band, graph) for band in placed.bands],
        rows=[_row(arrow, graph) for arrow in graph.arrows],
        flows=[_flow(flow) for flow in report.flows],
        streams=[stream_view(stream, report) for stream in report.streams],
        plugins=plugin_rows(report.flows, report.streams, paths),
        planned=planned_rows(report.flows, report.streams, paths),
        balances=[
            *(flow_balance(flow) for flow in report.flows),
            *(stream_balance(stream) for stream in report.streams),
            *(prefix_balance(flow) for flow in report.flows if flow.prefixes.get("handed_back")),
        ],
        episodes=[(flow.id, episode_entries(flow)) for flow in report.flows],
    )


def owner_paths(report: Report) -> dict[str, str]:
    """Where the plug-ins of each flow and each policy are changed."""
    flows = {f"flow {flow.id}": f"/flows/{quote(flow.id, safe='')}/plugins" for flow in report.flows}
    streams = {f"policy {one.policy}": f"/policies/{quote(one.policy, safe='')}/sampler" for one in report.streams}
    return flows | streams


def finding(graph: Graph, over: str) -> str:
    """What most groups that do not reach a trainer are lost to."""
    finished = sum(_value(arrow, over) for arrow in graph.arrows if graph.stage(arrow.target).kind == "trajectories")
    lately = " in the last minute" if over == "minute" else ""
    if not finished:
        return f"No group has finished{lately or ' yet'}"
    drops: dict[str, int] = {}
    for arrow in graph.arrows:
        target = graph.stage(arrow.target)
        if target.kind == "dropped":
            drops[target.of] = drops.get(target.of, 0) + _value(arrow, over)
    reason, number = max(drops.items(), key=lambda one: one[1], default=("", 0))
    if number / finished < FINDS_FROM:
        return f"Nearly every group reaches its trainer{lately}"
    words = REASONS.get(reason, (f"filtered by {reason}", ""))[0]
    return f"{formats.percent(number / finished)} of groups are {words}{lately}"


def dataflow_sheet(report: Report, earlier: Counts | None) -> Sheet:
    """The table of arrows, to take away."""
    graph = graph_of(report.flows, report.streams, earlier, report.at)
    rows = [
        (
            stage_name(graph.stage(arrow.source)),
            stage_name(graph.stage(arrow.target)),
            arrow.groups,
            arrow.lately if arrow.per_s is not None else None,
            None if arrow.per_s is None else round(arrow.per_s, 4),
            _share(arrow, graph),
            _meaning(graph.stage(arrow.target)),
        )
        for arrow in graph.arrows
    ]
    return Sheet(name="astraflow-dataflow", columns=COLUMNS, rows=rows)


def stage_name(stage: Stage) -> str:
    """A stage in words.

    >>> stage_name(Stage(key="k", kind="filters", of="train", column=3))
    'Filters (train)'
    """
    return f"{TITLES[stage.kind]} ({stage.of})" if stage.of else TITLES[stage.kind]


def _value(arrow: Arrow, over: str) -> int:
    return arrow.lately if over == "minute" else arrow.groups


def _layout(graph: Graph, over: str) -> sankey.Layout:
    ranked = sorted(graph.stages, key=lambda stage: (stage.column, stage.kind == "dropped"))
    places = [sankey.Place(key=stage.key, column=stage.column) for stage in ranked]
    streams = [
        sankey.Stream(source=arrow.source, target=arrow.target, value=_value(arrow, over)) for arrow in graph.arrows
    ]
    return sankey.laid_out(places, streams)


def _stage(stage: Stage, graph: Graph, box: sankey.Box, over: str, report: Report, run_id: int | None) -> StageView:
    coming = [arrow for arrow in graph.arrows if arrow.target == stage.key]
    going = [arrow for arrow in graph.arrows if arrow.source == stage.key]
    through = coming or going
    rates = [arrow.per_s for arrow in through if arrow.per_s is not None]
    rate = f"{formats.rate(sum(rates))}/s" if rates else ""
    count = formats.count(sum(_value(arrow, over) for arrow in through))
    if stage.kind == "dropped" and coming:
        count += f" · {formats.percent(_share(coming[0], graph))}"
    is_dropped = stage.kind == "dropped"
    query = urlencode({"fate": stage.of})
    return StageView(
        kind=stage.kind,
        title=formats.shortened(stage.of, at_most=18) if is_dropped else TITLES[stage.kind],
        name="" if is_dropped else formats.shortened(stage.of, at_most=16),
        count=count,
        note=" · ".join(part for part in (rate, _held(stage, report)) if part),
        x=box.x,
        y=box.y,
        height=box.height,
        href=f"/runs/{run_id}?{query}#samples" if is_dropped and run_id is not None else "",
    )


def _held(stage: Stage, report: Report) -> str:
    if stage.kind == "trajectories":
        flow = next(flow for flow in report.flows if flow.id == stage.of)
        accepted = flow.episodes.get("accepted", 0)
        return f"{formats.count(accepted)} episodes"
    words = {"tasks": "out now", "buffer": "wait now", "batch": "in work now"}
    return "" if stage.held is None else f"{formats.count(stage.held)} {words[stage.kind]}"


def _band(band: sankey.Band, graph: Graph) -> BandView:
    arrow = next(one for one in graph.arrows if (one.source, one.target) == (band.source, band.target))
    source, target = graph.stage(band.source), graph.stage(band.target)
    rate = "" if arrow.per_s is None else f", {formats.rate(arrow.per_s)}/s"
    words = f"{stage_name(source)} to {stage_name(target)}: {formats.several(arrow.groups, 'group')}{rate}"
    return BandView(kind=target.kind, path=band.path, title=words)


def _share(arrow: Arrow, graph: Graph) -> float | None:
    """Of what came to the stage that it leaves; None for the first."""
    whole = graph.into(arrow.source)
    return round(arrow.groups / whole, 6) if whole else None


def _row(arrow: Arrow, graph: Graph) -> ArrowRow:
    target = graph.stage(arrow.target)
    return ArrowRow(
        source=stage_name(graph.stage(arrow.source)),
        target=stage_name(target),
        groups=formats.count(arrow.groups),
        lately=formats.MISSING if arrow.per_s is None else formats.count(arrow.lately),
        rate=formats.rate(arrow.per_s),
        share=formats.percent(_share(arrow, graph)),
        meaning=_meaning(target),
    )


def _meaning(target: Stage) -> str:
    if target.kind != "dropped":
        return ""
    return REASONS.get(target.of, ("", "" if target.of == FAILED else "refused by this filter"))[1]


def _flow(flow: FlowReport) -> FlowLine:
    queued, leased = formats.several(flow.tasks_queued, "task"), formats.count(flow.tasks_leased)
    return FlowLine(
        id=flow.id,
        is_paused=flow.is_paused,
        note=f"{queued} queued, {leased} with nodes; {formats.several(flow.leases_expired, 'lease')} ran out, "
        f"{formats.several(flow.tasks_returned, 'task')} handed back",
    )
