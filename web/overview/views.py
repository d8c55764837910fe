"""Overview page: is the trainer fed, does the fleet have the right size, what does it cost, and what changed?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.diagnosis import fed_below
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from web.charts import charts, scales
from web.charts.chart_data import chart_data, lags_over, rows_of
from web.charts.version_lag import NodeLagRow, version_lag
from web.components import insights
from web.components.events import EventRow, latest_events
from web.components.fleet_texts import balance_insight
from web.components.layout import PageSelection
from web.components.live_texts import LiveText
from web.components.pool_cards import SHOWN_POOLS, PoolCard, pool_cards
from web.history.points import Point
from web.history.time_ranges import DEFAULT_RANGE, TimeRange
from web.overview.balance import BalanceChart, balance
from web.state.annotations import Annotation

SPARK_HEIGHT = 36
SPARKS = {"wait": "wait", "ratio": "ratio", "nodes": "nodes", "price": "price"}
"""Line of each chart that becomes its sparkline."""

SPARK_ROWS = 100
"""Points of a sparkline, which is about a hundred pixels wide."""

LIVE_CHARTS = (*charts.CHARTS.values(), *(charts.ALL_CHARTS[name] for name in SPARKS), charts.BALANCE)
"""Charts that the page's scripts redraw from live points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """View model of the overview of one policy."""

    policy: PolicyId
    stream: StreamReport
    span: TimeRange
    query: str
    """Query of links to the same policy and range."""
    balance: BalanceChart
    drawings: dict[str, charts.Drawing]
    sparks: dict[str, charts.Drawing]
    lag_rows: tuple[NodeLagRow, ...]
    window_s: float
    x_ticks: Sequence[tuple[float, str]]
    points: dict[str, Any]
    """Data for the scripts, see `web.charts.chart_data`."""
    flows: tuple[FlowReport, ...]
    pools: list[PoolCard]
    hidden_pools: int
    events: tuple[EventRow, ...]

    @property
    def range(self) -> str:
        """Name of the time range."""
        return self.span.name


def overview(
    report: Report, points: Sequence[Point], choice: PageSelection, annotations: Sequence[Annotation]
) -> Overview:
    """Builds the overview. The report must have the chosen policy."""
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    window, fed = scales.span_of([point.at for point in points], choice.span), fed_below(report)
    own = [point for point in points if stream.policy in point.policies]
    rows = rows_of(own, stream.policy)
    lag_rows = version_lag(stream.policy, points, window, bound=stream.max_staleness)
    drawings = {spec.name: _draw(spec, rows, window, report, stream) for spec in charts.CHARTS.values()}
    cards = pool_cards(report)
    return Overview(
        policy=stream.policy,
        stream=stream,
        span=choice.span,
        query=choice.query,
        balance=balance(rows, window, annotations, fed_below=fed),
        drawings=drawings,
        sparks={name: _draw(_spark(name), rows, window, report, stream) for name in SPARKS},
        lag_rows=lag_rows,
        window_s=choice.range_s,
        x_ticks=scales.x_ticks(window),
        points=chart_data(
            stream.policy,
            rows,
            LIVE_CHARTS,
            sequences=[point.sequence for point in own],
            lags=lags_over(own, stream.policy, [lag_row.name for lag_row in lag_rows]),
            annotations=annotations,
            is_moving=choice.span.is_moving,
        ),
        flows=report.flows,
        pools=cards[:SHOWN_POOLS],
        hidden_pools=max(0, len(cards) - SHOWN_POOLS),
        events=latest_events(report),
    )


def draw_chart(report: Report, points: Sequence[Point], choice: PageSelection, name: str) -> charts.Drawing:
    """Draws one chart of a policy."""
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    window = scales.span_of([point.at for point in points], choice.span)
    return _draw(charts.ALL_CHARTS[name], rows_of(points, stream.policy), window, report, stream)


def chart_titles(report: Report, points: Sequence[Point], choice: PageSelection) -> dict[str, LiveText]:
    """Returns chart titles over ranges other than the default, which has live texts, by key."""
    if choice.range == DEFAULT_RANGE:
        return {}
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    titles = insights.chart_insights(stream, points)
    live_texts = {f"policy/{stream.policy}/{name}/{choice.range}": LiveText(text=text) for name, text in titles.items()}
    return {**live_texts, f"fleet/balance/{choice.range}": LiveText(text=balance_insight(points))}


def _draw(
    spec: charts.ChartSpec, rows: Sequence[charts.Row], window: scales.Window, report: Report, stream: StreamReport
) -> charts.Drawing:
    return charts.draw(spec, rows, window, limit=charts.limit_of(spec, stream, fed_below=fed_below(report)))


def _spark(name: str) -> charts.ChartSpec:
    spec = charts.ALL_CHARTS[name]
    line = next(line for line in spec.lines if line.value == SPARKS[name])
    return replace(
        spec, lines=(replace(line, style="main", is_area=True),), height=SPARK_HEIGHT, server_drawn_rows=SPARK_ROWS
    )
