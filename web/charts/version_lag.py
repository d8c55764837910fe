"""Version lag chart: one row for each node, one interval for each lag it had."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from astraflow.contract.ids import PolicyId
from web.charts.panels import VERSION_LAG, Panel
from web.charts.scales import WIDTH, Window
from web.charts.tables import TABLE_ROWS
from web.components import formats
from web.components.downloads import Sheet
from web.history.points import MAX_CHARTED_NODES, Point

BEHIND_BAR_TOP = 6.0
LAG_COLUMNS = ("time", "unix_s", "node", "versions_behind")

GAP_S = 3.0
"""Time without a report that interrupts a node's row, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagInterval:
    """Time range in which a node's lag is constant."""

    x: float
    y: float
    """Top of the bar, of 16 units; nodes that lag have lower bars, so that colour is not the only signal."""
    width: float
    lag: int
    level: str
    """CSS class: `current`, `behind` or `beyond` the staleness bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLagRow:
    """Row of one node."""

    name: str
    intervals: tuple[LagInterval, ...]
    latest: str


def version_lag(policy: PolicyId, points: Sequence[Point], window: Window, *, bound: int) -> tuple[NodeLagRow, ...]:
    """Returns a row for each node, those of the newest point first. bound: `max_staleness` of the stream."""
    shown = [point for point in points if point.at >= window.start]
    newest = shown[-1].lags.get(policy, {}) if shown else {}
    earlier = {name for point in shown for name in point.lags.get(policy, {})} - newest.keys()
    names = [*sorted(newest), *sorted(earlier)][:MAX_CHARTED_NODES]
    return tuple(
        node_lag_row(name, [(point.at, point.lags.get(policy, {}).get(name)) for point in shown], window, bound=bound)
        for name in names
    )


def version_lag_panel(bound: int) -> Panel:
    """Returns the chart with a strip for each node: ready nodes that are farthest behind first. bound: staleness."""
    return Panel(
        name=VERSION_LAG,
        label="Versions each node is behind the trainer",
        series=(),
        format="lag",
        form="strips",
        limit=bound,
        height=184,
        reason="No node serves a version yet",
    )


def lag_sheet(points: Sequence[Point], policy: str) -> Sheet:
    """Returns the data of the chart as a sheet: a row for each node and time."""
    rows = [
        (datetime.fromtimestamp(point.at, UTC).isoformat(timespec="milliseconds"), round(point.at, 3), name, lag)
        for point in points
        for name, lag in sorted(_lags(point, policy).items())
    ]
    return Sheet(name="astraflow-versions", columns=LAG_COLUMNS, rows=rows)


def lag_table(points: Sequence[Point], policy: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the data of the chart as a table: headings, and about sixty rows, newest first."""
    names = sorted({name for point in points for name in _lags(point, policy)})[:MAX_CHARTED_NODES]
    shown = points[::-1][:: max(1, -(-len(points) // TABLE_ROWS))]
    body = [
        (
            formats.duration(points[-1].at - point.at),
            *(formats.count(_lags(point, policy).get(name)) for name in names),
        )
        for point in shown
    ]
    return ("age", *(formats.node_name(name) for name in names)), body


def _lags(point: Point, policy: str) -> Mapping[str, int]:
    return next((lags for policy_id, lags in point.lags.items() if policy_id == policy), {})


def level(lag: int, bound: int) -> str:
    """Returns the style of a lag."""
    return "current" if lag == 0 else "behind" if lag <= bound else "beyond"


def lag_text(lag: int | None) -> str:
    """Returns a lag in words.

    >>> lag_text(0), lag_text(2), lag_text(None)
    ('current', '2 behind', 'absent')
    """
    return "absent" if lag is None else f"{lag} behind" if lag else "current"


def node_lag_row(
    name: str, lags: Sequence[tuple[float, int | None]], window: Window, *, bound: int, gap_s: float = GAP_S
) -> NodeLagRow:
    """Builds one node's row from its lag over time; None while the node was absent."""
    intervals: list[LagInterval] = []
    start, last_seen, current = 0.0, 0.0, -1
    for at, lag in lags:
        if lag is None:
            continue
        if current >= 0 and (lag != current or at - last_seen > gap_s):
            end = at if at - last_seen <= gap_s else last_seen
            intervals.append(_lag_interval(start, end, current, window, bound))
            start, current = at, lag
        elif current < 0:
            start, current = at, lag
        last_seen = at
    if current >= 0:
        intervals.append(_lag_interval(start, last_seen, current, window, bound))
    return NodeLagRow(name=name, intervals=tuple(intervals), latest=lag_text(lags[-1][1] if lags else None))


def _lag_interval(start: float, end: float, lag: int, window: Window, bound: int) -> LagInterval:
    x = max(0.0, window.x_of(start))
    width = max(0.0, min(WIDTH, window.x_of(end)) - x)
    return LagInterval(
        x=round(x, 1),
        y=BEHIND_BAR_TOP if 0 < lag <= bound else 0.0,
        width=round(width, 1),
        lag=lag,
        level=level(lag, bound),
    )
