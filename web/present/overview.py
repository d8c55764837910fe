"""The overview: is the trainer fed, what is it learning, and who feeds it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports import Event, FlowReport, NodeReport, Report, StreamReport
from web.points import VALUES, Point, Series, point_json
from web.present import charts, scales
from web.present.cells import visible_nodes
from web.present.ladder import Rung, ladder
from web.present.shell import Chosen

SHOWN_NODES = 12
SHOWN_EVENTS = 40
SPARK_HEIGHT = 40
SPARKS = {"reward": "reward_average", "wait": "wait", "rates": "produced", "buffer": "buffered"}
"""Which line of a chart becomes its sparkline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What the overview shows of one policy."""

    policy: PolicyId
    stream: StreamReport
    range: str
    window_s: float
    drawings: dict[str, charts.Drawing]
    sparks: dict[str, charts.Drawing]
    rungs: tuple[Rung, ...]
    x_ticks: Sequence[tuple[float, str]]
    points: dict[str, Any]
    """For the scripts: see `page_points`."""
    flows: tuple[FlowReport, ...]
    nodes: list[NodeReport]
    hidden_nodes: int
    events: list[Event]


def overview(report: Report, series: Series, choice: Chosen) -> Overview:
    """Everything the template needs. The report must have the chosen policy."""
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    points = series.window(choice.range_s)
    window = scales.window_of(points[0].at if points else None, points[-1].at if points else None, choice.range_s)
    rows = rows_of(points, stream.policy)
    drawn = {spec.name: _draw(spec, rows, window, stream) for spec in charts.CHARTS.values()}
    nodes = visible_nodes(report)
    return Overview(
        policy=stream.policy,
        stream=stream,
        range=choice.range,
        window_s=choice.range_s,
        drawings=drawn,
        sparks={name: _draw(_spark(name), rows, window, stream) for name in SPARKS},
        rungs=ladder(stream.policy, points, window, bound=stream.max_staleness),
        x_ticks=scales.x_ticks(window),
        points=page_points(stream.policy, points),
        flows=report.flows,
        nodes=nodes[:SHOWN_NODES],
        hidden_nodes=max(0, len(nodes) - SHOWN_NODES),
        events=latest_events(report),
    )


def rows_of(points: Sequence[Point], policy: PolicyId) -> list[charts.Row]:
    """Points of one policy as chart rows."""
    return [
        (point.at, {name: getattr(point.policies[policy], name) for name in VALUES})
        for point in points
        if policy in point.policies
    ]


def page_points(policy: PolicyId, points: Sequence[Point]) -> dict[str, Any]:
    """What the scripts draw from: one policy's points as `web.frames.point_json` gives them, and the values' names."""
    return {
        "isLive": True,
        "policy": policy,
        "values": VALUES,
        "points": [point_json(point, policy) for point in points],
    }


def latest_events(report: Report) -> list[Event]:
    """The newest events, newest first."""
    return sorted(report.events, key=lambda event: -event.ordinal)[:SHOWN_EVENTS]


def _draw(
    spec: charts.ChartSpec, rows: Sequence[charts.Row], window: scales.Window, stream: StreamReport
) -> charts.Drawing:
    return charts.draw(spec, rows, window, limit=charts.limit_of(spec, stream))


def _spark(name: str) -> charts.ChartSpec:
    spec = charts.CHARTS[name]
    line = next(line for line in spec.lines if line.value == SPARKS[name])
    return replace(spec, lines=(replace(line, style="main", is_area=True),), height=SPARK_HEIGHT)
