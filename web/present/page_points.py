"""What the scripts of a page draw its charts from: columns of numbers, without their repetitions.

Most numbers stay the same for seconds or minutes, so that a column is far smaller than the same numbers by points.
`static/js/points.js` reads it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from web.feed.capacity import FLEET_VALUES
from web.feed.pins import Pin, pin_json
from web.history.points import VALUES, Point, rounded
from web.present.charts import ChartSpec, Row

ALWAYS = ("version",)
"""Values that scripts look at besides the lines of their charts."""

CENTISECONDS = 100


def page_points(
    policy: str,
    rows: Sequence[Row],
    specs: Iterable[ChartSpec],
    *,
    sequences: Sequence[int],
    lags: Mapping[str, Sequence[int | None]] | None = None,
    pins: Sequence[Pin] = (),
    is_moving: bool = True,
) -> dict[str, Any]:
    """The rows of one policy, oldest first, as far as these charts draw them.

    sequences: of the report behind each row. lags: by node, one for each row; None where the node was away.
    Moments and sequences are told as the steps from one to the next, moments in hundredths of a second.
    """
    names = sorted({line.value for spec in specs for line in spec.lines}.union(ALWAYS))
    moments = [round(at * CENTISECONDS) for at, _ in rows]
    return {
        "isLive": is_moving,
        "policy": policy,
        "values": VALUES,
        "fleetValues": FLEET_VALUES,
        "sequence": packed(_steps(sequences)),
        "at": packed(_steps(moments)),
        "columns": {name: packed([rounded(values.get(name)) for _, values in rows]) for name in names},
        "lags": {node: packed(behind) for node, behind in (lags or {}).items()},
        "pins": [pin_json(pin) for pin in pins],
    }


def lags_over(points: Sequence[Point], policy: str, names: Sequence[str]) -> dict[str, list[int | None]]:
    """How far behind each of these nodes was at each point."""
    behind = [point.lags.get(policy, {}) for point in points]  # type: ignore[call-overload] # a policy's id is its name
    return {name: [at.get(name) for at in behind] for name in names}


def packed(column: Iterable[object]) -> list[object]:
    """A column with `[value, times]` for what stands there several times, one after the other.

    >>> packed([0.5, 0.5, 0.5, None, 1])
    [[0.5, 3], None, 1]
    """
    found = ((value, sum(1 for _ in same)) for value, same in groupby(column))
    return [value if times == 1 else [value, times] for value, times in found]


def _steps(numbers: Sequence[int]) -> list[int]:
    """The first, and then how much more each is than the one before."""
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]
