"""The version ladder: one row for each node, one stretch for each lag it had."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from astraflow.contract.ids import PolicyId
from web.history.points import CHARTED_NODES, Point
from web.present import formats
from web.present.scales import WIDTH, Window
from web.present.series import TABLE_ROWS
from web.reading.exports import Sheet

BEHIND_Y = 6.0
LAG_COLUMNS = ("time", "unix_s", "node", "versions_behind")

GAP_S = 3.0
"""A node that is missing for longer leaves a hole in its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A node's lag did not change here."""

    x: float
    y: float
    """Of 16: a node that is behind has a lower bar, so that colour does not speak alone."""
    width: float
    lag: int
    level: str
    """CSS class: `current`, `behind` or `beyond` the staleness bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One node's row."""

    name: str
    stretches: tuple[Stretch, ...]
    latest: str


def ladder(policy: PolicyId, points: Sequence[Point], window: Window, *, bound: int) -> tuple[Rung, ...]:
    """Rows by node name, for the nodes of the newest points. bound: `max_staleness` of the stream."""
    shown = [point for point in points if point.at >= window.start]
    names = sorted({name for point in shown for name in point.lags.get(policy, {})})[:CHARTED_NODES]
    return tuple(
        rung(name, [(point.at, point.lags.get(policy, {}).get(name)) for point in shown], window, bound=bound)
        for name in names
    )


def lag_sheet(points: Sequence[Point], policy: str) -> Sheet:
    """What the ladder draws: a row for each node and time."""
    rows = [
        (datetime.fromtimestamp(point.at, UTC).isoformat(timespec="milliseconds"), round(point.at, 3), name, lag)
        for point in points
        for name, lag in sorted(_lags(point, policy).items())
    ]
    return Sheet(name="astraflow-versions", columns=LAG_COLUMNS, rows=rows)


def lag_table(points: Sequence[Point], policy: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The same for people: heads, and about sixty rows, newest first."""
    names = sorted({name for point in points for name in _lags(point, policy)})[:CHARTED_NODES]
    shown = points[::-1][:: max(1, -(-len(points) // TABLE_ROWS))]
    body = [
        (
            formats.duration(points[-1].at - point.at),
            *(formats.count(_lags(point, policy).get(name)) for name in names),
        )
        for point in shown
    ]
    return ("before the newest", *(formats.node_name(name) for name in names)), body


def _lags(point: Point, policy: str) -> Mapping[str, int]:
    return next((lags for known, lags in point.lags.items() if known == policy), {})


def level(lag: int, bound: int) -> str:
    """How a lag is drawn."""
    return "current" if lag == 0 else "behind" if lag <= bound else "beyond"


def lag_text(lag: int | None) -> str:
    """A lag in words.

    >>> lag_text(0), lag_text(2), lag_text(None)
    ('current', '2 behind', 'away')
    """
    return "away" if lag is None else f"{lag} behind" if lag else "current"


def rung(
    name: str, lags: Sequence[tuple[float, int | None]], window: Window, *, bound: int, gap_s: float = GAP_S
) -> Rung:
    """One node's row, from how far it was behind at which time; None where it was away."""
    stretches: list[Stretch] = []
    start, until, current = 0.0, 0.0, -1
    for at, lag in lags:
        if lag is None:
            continue
        if current >= 0 and (lag != current or at - until > gap_s):
            end = at if at - until <= gap_s else until
            stretches.append(_stretch(start, end, current, window, bound))
            start, current = at, lag
        elif current < 0:
            start, current = at, lag
        until = at
    if current >= 0:
        stretches.append(_stretch(start, until, current, window, bound))
    return Rung(name=name, stretches=tuple(stretches), latest=lag_text(lags[-1][1] if lags else None))


def _stretch(start: float, end: float, lag: int, window: Window, bound: int) -> Stretch:
    x = max(0.0, window.place(start))
    width = max(0.0, min(WIDTH, window.place(end)) - x)
    return Stretch(
        x=round(x, 1), y=BEHIND_Y if 0 < lag <= bound else 0.0, width=round(width, 1), lag=lag, level=level(lag, bound)
    )
