"""Version lag chart: a strip for each node, whose colour is the number of versions that the node is behind."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from web.charts.panels import VERSION_LAG, Panel
from web.charts.tables import TABLE_ROWS, Table
from web.components import formats
from web.components.downloads import Sheet
from web.history.points import Point

LAG_COLUMNS = ("time", "unix_s", "node", "versions_behind")


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


def lag_table(points: Sequence[Point], policy: str) -> Table:
    """Returns the data of the chart as a table: headings, and about sixty rows, newest first."""
    names = _by_relevance(points, policy)
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


def _by_relevance(points: Sequence[Point], policy: str) -> list[str]:
    """Returns the names of nodes: those that serve now first, each in the order of their largest lag."""
    largest: dict[str, int] = {}
    for point in points:
        for name, lag in _lags(point, policy).items():
            largest[name] = max(lag, largest.get(name, 0))
    serving = _lags(points[-1], policy) if points else {}
    return sorted(largest, key=lambda name: (name not in serving, -largest[name], name))
