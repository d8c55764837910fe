"""Overview page: is the trainer fed, does the fleet have the right size, what does it cost, and what changed?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.diagnosis import fed_below
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from web.charts import panels
from web.charts.panels import Panel, PanelView, Row, panel_view
from web.charts.tables import lags_over, points_json, rows_of
from web.charts.version_lag import version_lag_panel
from web.components import insights
from web.components.events import EventRow, latest_events
from web.components.fleet_texts import balance_insight
from web.components.layout import PageSelection
from web.components.live_texts import LiveText
from web.components.pool_cards import SHOWN_POOLS, PoolCard, pool_cards
from web.history.points import Point
from web.history.time_ranges import DEFAULT_RANGE, TimeRange
from web.state.annotations import Annotation

SPARKS = ("wait", "ratio", "nodes", "price")
"""Charts of which the first series becomes a line beside a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """View model of the overview of one policy."""

    policy: PolicyId
    stream: StreamReport
    span: TimeRange
    query: str
    """Query of links to the same policy and range."""
    charts: dict[str, PanelView]
    """Charts by name."""
    sparks: dict[str, PanelView]
    points: dict[str, Any]
    """Table of the charts, see `web.charts.tables`."""
    flows: tuple[FlowReport, ...]
    has_price: bool
    """Whether the price of the nodes is known."""
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
    own = [point for point in points if stream.policy in point.policies]
    rows = rows_of(own, stream.policy)
    views = {name: _view(panel, rows, report, stream) for name, panel in panels.ALL_CHARTS.items()}
    views[panels.VERSION_LAG] = panel_view(version_lag_panel(stream.max_staleness), rows)
    cards = pool_cards(report)
    return Overview(
        policy=stream.policy,
        stream=stream,
        span=choice.span,
        query=choice.query,
        charts=views,
        sparks={name: _spark(views[name].panel, rows) for name in SPARKS},
        points=overview_points(own, choice, annotations),
        flows=report.flows,
        has_price=bool(points) and points[-1].fleet.dollars is not None,
        pools=cards[:SHOWN_POOLS],
        hidden_pools=max(0, len(cards) - SHOWN_POOLS),
        events=latest_events(report),
    )


def overview_points(
    points: Sequence[Point], choice: PageSelection, annotations: Sequence[Annotation]
) -> dict[str, Any]:
    """Returns the table behind the charts of the overview. points: of the chosen policy."""
    policy = choice.policy or PolicyId("")
    return points_json(
        policy,
        rows_of(points, policy),
        panels.ALL_CHARTS.values(),
        sequences=[point.sequence for point in points],
        span=choice.span,
        lags=lags_over(points, policy),
        annotations=annotations,
        is_moving=choice.span.is_moving,
    )


def chart_titles(report: Report, points: Sequence[Point], choice: PageSelection) -> dict[str, LiveText]:
    """Returns chart titles over ranges other than the default, which has live texts, by key."""
    if choice.range == DEFAULT_RANGE:
        return {}
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    titles = insights.chart_insights(stream, points)
    live_texts = {f"policy/{stream.policy}/{name}/{choice.range}": LiveText(text=text) for name, text in titles.items()}
    return {**live_texts, f"fleet/balance/{choice.range}": LiveText(text=balance_insight(points))}


def _view(panel: Panel, rows: Sequence[Row], report: Report, stream: StreamReport) -> PanelView:
    limit = panels.limit_of(panel, stream, fed_below=fed_below(report))
    return panel_view(replace(panel, limit=limit), rows)


def _spark(panel: Panel, rows: Sequence[Row]) -> PanelView:
    return panel_view(replace(panel, series=panel.series[:1], bands=()), rows)


def published_versions(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """Returns each published version and the time it was first seen (Unix seconds), newest first.

    Of several versions published between two points only the last is listed.
    """
    versions: list[tuple[int, float]] = []
    previous: float | None = None
    for at, values in rows:
        version = values.get("version")
        if previous is not None and version is not None and version > previous:
            versions.append((int(version), at))
        previous = version
    return versions[::-1]
