"""The path of groups as a graph: stages, and arrows between them with what went along, in all and lately."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from astraflow.contract.reports import FlowReport, Report, StreamReport

WINDOW_S = 60.0
"""Over which rates are measured."""

FAILED = "failed"
"""The one reason for a drop at admission that is no filter's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What flows and streams had counted at one moment."""

    at: float
    """Unix seconds."""
    flows: tuple[FlowReport, ...]
    streams: tuple[StreamReport, ...]


class RecentCounts:
    """The counts of the last minute, for rates."""

    def __init__(self) -> None:
        self._kept: deque[Counts] = deque()

    def see(self, report: Report) -> None:
        """Take a report; reports come in the order of their time."""
        self._kept.append(Counts(at=report.at, flows=report.flows, streams=report.streams))
        while len(self._kept) > 2 and self._kept[1].at <= report.at - WINDOW_S:
            self._kept.popleft()

    @property
    def earliest(self) -> Counts | None:
        """The counts of a minute ago, or of the first report after that; None while there is only one."""
        return self._kept[0] if len(self._kept) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A place on the path. `kind`: prompts, tasks, trajectories, filters, routes, buffer, batch, trainer or dropped."""

    key: str
    kind: str
    of: str
    """Name of the flow or of the policy; of what was dropped, the reason."""
    column: int
    held: int | None = None
    """Groups that are there now, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Groups that went from one stage to another."""

    source: str
    target: str
    groups: int
    """Since the run began."""
    lately: int = 0
    """In the last minute, or since the first report if that is later."""
    per_s: float | None = None
    """The same for each second; None while there is one report only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """All of it. The counts along arrows balance with what stages hold, as those of the report do."""

    stages: tuple[Stage, ...]
    arrows: tuple[Arrow, ...]
    span_s: float | None
    """That `lately` is about."""

    def stage(self, key: str) -> Stage:
        """The stage of that key."""
        return next(stage for stage in self.stages if stage.key == key)

    def into(self, key: str) -> int:
        """Groups that came to a stage since the run began."""
        return sum(arrow.groups for arrow in self.arrows if arrow.target == key)


def graph_of(flows: Sequence[FlowReport], streams: Sequence[StreamReport], earlier: Counts | None, at: float) -> Graph:
    """The path as it is, with rates against earlier counts. at: Unix seconds of these counts."""
    stages, arrows = _graph(flows, streams)
    if earlier is None or at <= earlier.at:
        return Graph(stages=tuple(stages), arrows=tuple(arrows), span_s=None)
    span_s = at - earlier.at
    before = {(arrow.source, arrow.target): arrow.groups for arrow in _graph(earlier.flows, earlier.streams)[1]}
    measured = []
    for arrow in arrows:
        lately = max(0, arrow.groups - before.get((arrow.source, arrow.target), 0))
        measured.append(replace(arrow, lately=lately, per_s=lately / span_s))
    return Graph(stages=tuple(stages), arrows=tuple(measured), span_s=span_s)


def _graph(flows: Sequence[FlowReport], streams: Sequence[StreamReport]) -> tuple[list[Stage], list[Arrow]]:
    """Streams hang on the flow when there is one; of several, the report does not say whose groups are whose."""
    stages: list[Stage] = []
    arrows: list[Arrow] = []
    has_routes = len(flows) > 1
    for flow in flows:
        own_stages, own_arrows = _flow_path(flow)
        stages += own_stages
        arrows += own_arrows
    if has_routes:
        stages.append(Stage(key="routes", kind="routes", of="", column=4))
        arrows += [Arrow(source=f"{flow.id}/filters", target="routes", groups=flow.admitted) for flow in flows]
    source = "routes" if has_routes else f"{flows[0].id}/filters" if flows else ""
    for stream in streams:
        own_stages, own_arrows = _stream_path(stream, source, first=5 if has_routes else 4)
        stages += own_stages
        arrows += own_arrows
    return stages, arrows


def _flow_path(flow: FlowReport) -> tuple[list[Stage], list[Arrow]]:
    name, finished = flow.id, flow.admitted + sum(flow.dropped.values())
    failed = flow.dropped.get(FAILED, 0)
    stages = [
        Stage(key=f"{name}/prompts", kind="prompts", of=name, column=0),
        Stage(key=f"{name}/tasks", kind="tasks", of=name, column=1, held=flow.open),
        Stage(key=f"{name}/trajectories", kind="trajectories", of=name, column=2),
        Stage(key=f"{name}/filters", kind="filters", of=name, column=3),
    ]
    arrows = [
        Arrow(source=f"{name}/prompts", target=f"{name}/tasks", groups=flow.issued),
        Arrow(source=f"{name}/tasks", target=f"{name}/trajectories", groups=finished),
        Arrow(source=f"{name}/trajectories", target=f"{name}/filters", groups=finished - failed),
    ]
    filters = [str(spec.get("kind", "")) for spec in flow.filters]
    for reason in sorted({*flow.dropped, *filters} - {"", "keep_all"}, key=_order(filters)):
        key, is_failed = f"{name}/dropped/{reason}", reason == FAILED
        stages.append(Stage(key=key, kind="dropped", of=reason, column=3 if is_failed else 4))
        source = f"{name}/{'trajectories' if is_failed else 'filters'}"
        arrows.append(Arrow(source=source, target=key, groups=flow.dropped.get(reason, 0)))
    return stages, arrows


def _order(filters: Sequence[str]) -> Callable[[str], tuple[bool, int, str]]:
    """Failures first, then filters in the order in which they judge, then those that judged once."""
    return lambda reason: (reason != FAILED, filters.index(reason) if reason in filters else len(filters), reason)


def _stream_path(stream: StreamReport, source: str, *, first: int) -> tuple[list[Stage], list[Arrow]]:
    name = stream.policy
    buffer, batch, trainer = (f"policy/{name}/{kind}" for kind in ("buffer", "batch", "trainer"))
    stages = [
        Stage(key=buffer, kind="buffer", of=name, column=first, held=stream.buffered),
        Stage(key=batch, kind="batch", of=name, column=first + 1, held=stream.in_batch),
        Stage(key=trainer, kind="trainer", of=name, column=first + 2),
    ]
    arrows = [
        *([Arrow(source=source, target=buffer, groups=stream.admitted)] if source else []),
        Arrow(source=buffer, target=batch, groups=stream.in_batch + stream.trained),
        Arrow(source=batch, target=trainer, groups=stream.trained),
    ]
    for reason in _reasons(stream.dropped):
        key = f"policy/{name}/dropped/{reason}"
        stages.append(Stage(key=key, kind="dropped", of=reason, column=first + 1))
        arrows.append(Arrow(source=buffer, target=key, groups=stream.dropped.get(reason, 0)))
    return stages, arrows


def _reasons(dropped: Iterable[str]) -> list[str]:
    """`stale` is always there: that nothing is too stale is worth seeing."""
    return sorted({*dropped, "stale"})
