"""The overview: is the trainer fed, is the fleet right-sized, what does it cost, and what changed?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports import FlowReport, Report, StreamReport
from web.feed.capacity import FLEET_VALUES
from web.feed.pins import Pin
from web.history.points import VALUES, Point
from web.history.ranges import DEFAULT_RANGE, TimeRange
from web.present import charts, findings, scales
from web.present.balance import Balance, balance
from web.present.cells import Cell
from web.present.events import EventRow, event_rows
from web.present.fleet_cells import balance_finding
from web.present.gauge import Gauge, gauge
from web.present.ladder import Rung, ladder
from web.present.page_points import lags_over, page_points
from web.present.pool_cards import SHOWN_POOLS, PoolCard, pool_cards
from web.present.shell import Chosen

SPARK_HEIGHT = 36
SPARKS = {"wait": "wait", "ratio": "ratio", "nodes": "nodes", "price": "price"}
"""Which line of a chart becomes its sparkline."""

SPARK_ROWS = 100
"""It is as wide as some hundred pixels."""

DRAWN = (*charts.CHARTS.values(), *(charts.KNOWN[name] for name in SPARKS), charts.BALANCE)
"""What the page's scripts draw again from live points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What the overview shows of one policy."""

    policy: PolicyId
    stream: StreamReport
    span: TimeRange
    query: str
    """Of links that lead to the same policy and range."""
    balance: Balance
    gauge: Gauge
    drawings: dict[str, charts.Drawing]
    sparks: dict[str, charts.Drawing]
    rungs: tuple[Rung, ...]
    window_s: float
    x_ticks: Sequence[tuple[float, str]]
    points: dict[str, Any]
    """For the scripts: see `web.present.page_points`."""
    flows: tuple[FlowReport, ...]
    pools: list[PoolCard]
    hidden_pools: int
    events: tuple[EventRow, ...]

    @property
    def range(self) -> str:
        """Name of the time range."""
        return self.span.name


def overview(report: Report, points: Sequence[Point], choice: Chosen, pins: Sequence[Pin]) -> Overview:
    """Everything the template needs. The report must have the chosen policy."""
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    window = scales.span_of([point.at for point in points], choice.span)
    own = [point for point in points if stream.policy in point.policies]
    rows = rows_of(own, stream.policy)
    rungs = ladder(stream.policy, points, window, bound=stream.max_staleness)
    drawn = {spec.name: _draw(spec, rows, window, stream) for spec in charts.CHARTS.values()}
    cards = pool_cards(report)
    return Overview(
        policy=stream.policy,
        stream=stream,
        span=choice.span,
        query=choice.query,
        balance=balance(rows, window, pins),
        gauge=gauge(report),
        drawings=drawn,
        sparks={name: _draw(_spark(name), rows, window, stream) for name in SPARKS},
        rungs=rungs,
        window_s=choice.range_s,
        x_ticks=scales.x_ticks(window),
        points=page_points(
            stream.policy,
            rows,
            DRAWN,
            sequences=[point.sequence for point in own],
            lags=lags_over(own, stream.policy, [rung.name for rung in rungs]),
            pins=pins,
            is_moving=choice.span.is_moving,
        ),
        flows=report.flows,
        pools=cards[:SHOWN_POOLS],
        hidden_pools=max(0, len(cards) - SHOWN_POOLS),
        events=latest_events(report),
    )


def one_chart(report: Report, points: Sequence[Point], choice: Chosen, name: str) -> charts.Drawing:
    """One chart of a policy by itself."""
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    window = scales.span_of([point.at for point in points], choice.span)
    return _draw(charts.KNOWN[name], rows_of(points, stream.policy), window, stream)


def titles(report: Report, points: Sequence[Point], choice: Chosen) -> dict[str, Cell]:
    """Titles of charts over a range of which no live texts are kept, by their keys."""
    if choice.range == DEFAULT_RANGE:
        return {}
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    found = findings.chart_findings(stream.policy, stream, points)
    cells = {f"policy/{stream.policy}/{name}/{choice.range}": Cell(text=text) for name, text in found.items()}
    return {**cells, f"fleet/balance/{choice.range}": Cell(text=balance_finding(points))}


def rows_of(points: Sequence[Point], policy: PolicyId) -> list[charts.Row]:
    """Points of one policy as chart rows."""
    return [
        (
            point.at,
            {name: getattr(point.policies[policy], name) for name in VALUES}
            | {name: getattr(point.fleet, name) for name in FLEET_VALUES},
        )
        for point in points
        if policy in point.policies
    ]


def latest_events(report: Report) -> tuple[EventRow, ...]:
    """The newest events as lines, newest first."""
    return event_rows(sorted(report.events, key=lambda event: -event.ordinal))


def _draw(
    spec: charts.ChartSpec, rows: Sequence[charts.Row], window: scales.Window, stream: StreamReport
) -> charts.Drawing:
    return charts.draw(spec, rows, window, limit=charts.limit_of(spec, stream))


def _spark(name: str) -> charts.ChartSpec:
    spec = charts.KNOWN[name]
    line = next(line for line in spec.lines if line.value == SPARKS[name])
    return replace(
        spec, lines=(replace(line, style="main", is_area=True),), height=SPARK_HEIGHT, painted_rows=SPARK_ROWS
    )
