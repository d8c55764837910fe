"""Graph of the dataflow: stages and the groups that moved between them, in total and in the last minute."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from astraflow.contract.reports.report import FlowReport, Report, StreamReport

WINDOW_S = 60.0
"""Time over which rates are measured, in seconds."""

FAILED = "failed"
"""Drop reason at admission that belongs to no filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowCounts:
    """Counts of flows and streams at one time."""

    at: float
    """Unix seconds."""
    flows: tuple[FlowReport, ...]
    streams: tuple[StreamReport, ...]


class RecentCounts:
    """Counts of the last minute, for rates."""

    def __init__(self) -> None:
        self._counts: deque[DataflowCounts] = deque()

    def add(self, report: Report) -> None:
        """Adds a report; reports arrive in order of time."""
        self._counts.append(DataflowCounts(at=report.at, flows=report.flows, streams=report.streams))
        while len(self._counts) > 2 and self._counts[1].at <= report.at - WINDOW_S:
            self._counts.popleft()

    @property
    def earliest(self) -> DataflowCounts | None:
        """Counts of a minute ago, or the first ones since; None while there are fewer than two."""
        return self._counts[0] if len(self._counts) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of the path. `kind`: prompts, tasks, trajectories, filters, routes, buffer, batch, trainer or dropped."""

    key: str
    kind: str
    subject: str
    """Name of the flow or policy; the reason for dropped groups."""
    column: int
    current_groups: int | None = None
    """Groups that are in the stage now; None where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """Groups that moved from one stage to another."""

    source: str
    """Key of the stage that the groups left."""
    target: str
    """Key of the stage that they reached."""
    groups: int
    """Groups since the run started."""
    recent_groups: int = 0
    """Groups in the last minute, or since the first report if that is later."""
    per_s: float | None = None
    """Recent groups per second; None after a single report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowGraph:
    """Stages and edges. Counts along edges balance with the groups in stages, as those of the report do."""

    stages: tuple[Stage, ...]
    edges: tuple[StageEdge, ...]
    span_s: float | None
    """Time that `recent_groups` covers, in seconds; None after a single report."""

    def stage(self, key: str) -> Stage:
        """Returns a stage by key."""
        return next(stage for stage in self.stages if stage.key == key)

    def groups_into(self, key: str) -> int:
        """Returns the groups that entered a stage since the run started."""
        return sum(edge.groups for edge in self.edges if edge.target == key)


def build_graph(
    flows: Sequence[FlowReport], streams: Sequence[StreamReport], earlier: DataflowCounts | None, at: float
) -> DataflowGraph:
    """Builds the graph, with rates against earlier counts. at: time of the newest counts, Unix seconds."""
    stages, edges = _graph(flows, streams)
    if earlier is None or at <= earlier.at:
        return DataflowGraph(stages=tuple(stages), edges=tuple(edges), span_s=None)
    span_s = at - earlier.at
    earlier_groups = {(edge.source, edge.target): edge.groups for edge in _graph(earlier.flows, earlier.streams)[1]}
    with_rates = []
    for edge in edges:
        recent = max(0, edge.groups - earlier_groups.get((edge.source, edge.target), 0))
        with_rates.append(replace(edge, recent_groups=recent, per_s=recent / span_s))
    return DataflowGraph(stages=tuple(stages), edges=tuple(with_rates), span_s=span_s)


def _graph(flows: Sequence[FlowReport], streams: Sequence[StreamReport]) -> tuple[list[Stage], list[StageEdge]]:
    """Builds stages and edges. Several flows share a stage before the streams: reports do not link them."""
    stages: list[Stage] = []
    edges: list[StageEdge] = []
    has_routes = len(flows) > 1
    for flow in flows:
        own_stages, own_edges = _flow_path(flow)
        stages += own_stages
        edges += own_edges
    if has_routes:
        stages.append(Stage(key="routes", kind="routes", subject="", column=4))
        edges += [StageEdge(source=f"{flow.id}/filters", target="routes", groups=flow.admitted) for flow in flows]
    source = "routes" if has_routes else f"{flows[0].id}/filters" if flows else ""
    for stream in streams:
        own_stages, own_edges = _stream_path(stream, source, first=5 if has_routes else 4)
        stages += own_stages
        edges += own_edges
    return stages, edges


def _flow_path(flow: FlowReport) -> tuple[list[Stage], list[StageEdge]]:
    name, finished = flow.id, flow.admitted + sum(flow.dropped.values())
    failed = flow.dropped.get(FAILED, 0)
    stages = [
        Stage(key=f"{name}/prompts", kind="prompts", subject=name, column=0),
        Stage(key=f"{name}/tasks", kind="tasks", subject=name, column=1, current_groups=flow.open),
        Stage(key=f"{name}/trajectories", kind="trajectories", subject=name, column=2),
        Stage(key=f"{name}/filters", kind="filters", subject=name, column=3),
    ]
    edges = [
        StageEdge(source=f"{name}/prompts", target=f"{name}/tasks", groups=flow.issued),
        StageEdge(source=f"{name}/tasks", target=f"{name}/trajectories", groups=finished),
        StageEdge(source=f"{name}/trajectories", target=f"{name}/filters", groups=finished - failed),
    ]
    filters = [str(spec.get("kind", "")) for spec in flow.filters]
    for reason in sorted({*flow.dropped, *filters} - {"", "keep_all"}, key=_order(filters)):
        key, is_failed = f"{name}/dropped/{reason}", reason == FAILED
        stages.append(Stage(key=key, kind="dropped", subject=reason, column=3 if is_failed else 4))
        source = f"{name}/{'trajectories' if is_failed else 'filters'}"
        edges.append(StageEdge(source=source, target=key, groups=flow.dropped.get(reason, 0)))
    return stages, edges


def _order(filters: Sequence[str]) -> Callable[[str], tuple[bool, int, str]]:
    """Orders drop reasons: failures, then current filters in their order, then former filters."""
    return lambda reason: (reason != FAILED, filters.index(reason) if reason in filters else len(filters), reason)


def _stream_path(stream: StreamReport, source: str, *, first: int) -> tuple[list[Stage], list[StageEdge]]:
    name = stream.policy
    buffer, batch, trainer = (f"policy/{name}/{kind}" for kind in ("buffer", "batch", "trainer"))
    stages = [
        Stage(key=buffer, kind="buffer", subject=name, column=first, current_groups=stream.groups.buffered),
        Stage(key=batch, kind="batch", subject=name, column=first + 1, current_groups=stream.groups.in_batch),
        Stage(key=trainer, kind="trainer", subject=name, column=first + 2),
    ]
    edges = [
        *([StageEdge(source=source, target=buffer, groups=stream.groups.admitted)] if source else []),
        StageEdge(source=buffer, target=batch, groups=stream.groups.in_batch + stream.groups.trained),
        StageEdge(source=batch, target=trainer, groups=stream.groups.trained),
    ]
    for reason in _reasons(stream.groups.dropped):
        key = f"policy/{name}/dropped/{reason}"
        stages.append(Stage(key=key, kind="dropped", subject=reason, column=first + 1))
        edges.append(StageEdge(source=buffer, target=key, groups=stream.groups.dropped.get(reason, 0)))
    return stages, edges


def _reasons(dropped: Iterable[str]) -> list[str]:
    """Returns the drop reasons of a stream, always with `stale`, so that a zero is visible."""
    return sorted({*dropped, "stale"})
