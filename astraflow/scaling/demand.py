"""How many groups a second keep every trainer busy: from how long steps compute, never from how many nodes there are.

The rate at which groups come in says nothing about demand once the buffer is full: then every pool, however large,
produces exactly what is consumed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from astraflow.scaling.signals import StreamSignals

STEPS = 6
"""Compute times that are looked at."""

SPREAD = 1.48
"""Of normal noise: its standard deviation over its median absolute deviation."""

CHANGED = 0.25
"""The latest two steps count alone when both differ from the median of those before by more than this share, and by
more than steps differ from each other anyway."""

CLEARLY = 2.5
"""Standard deviations that each of the latest two steps must be off by."""

SURELY = 3.5
"""Standard errors that the mean of the latest three, four or five must be off by."""

LATEST = (3, 4, 5)
BEFORE = 5
"""So many steps before them, at least, tell what is usual and how far steps differ by chance."""

_LEAST, _MOST = 1e-6, 1e9
"""Between them is what can have been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the policy that needs most needs."""

    stream: StreamSignals
    compute_s: float
    groups_per_s: float
    """Produced groups."""
    noise: float
    """Standard error of that usual compute time, as a share of it."""


def demand_of(streams: Sequence[StreamSignals]) -> Demand | None:
    """The largest demand of any policy: a group is produced for all of them. None before the first step."""
    found = [one for one in map(_demand, streams) if one is not None]
    return max(found, key=lambda one: one.groups_per_s, default=None)


def usual_compute_s(compute_s: Sequence[float]) -> tuple[float, float]:
    """Median of the latest six steps, or the mean of the latest few when these are clearly of another kind; its noise.

    The latest two alone miss a change that chance hides in one of them, and a median of six follows it only when four
    have passed: so three to five are looked at together, too.

    >>> usual_compute_s([120, 118, 121, 119, 122, 60])[0]
    119.5
    >>> usual_compute_s([120, 118, 121, 119, 61, 60])[0]
    60.5
    >>> usual_compute_s([120, 110, 130, 119, 122, 118, 80, 95, 70])[0]
    81.66666666666667
    """
    latest = list(compute_s)[-STEPS:]
    earlier, last = latest[:-2], latest[-2:]
    if len(earlier) >= 2:
        usual = median(earlier)
        changes = [value / usual - 1 for value in last]
        clear = max(CHANGED, CLEARLY * _spread(list(compute_s)[:-2]))
        if min(changes) > clear or max(changes) < -clear:
            return sum(last) / 2, _noise(last)
    changed = _latest_of_another_kind(list(compute_s))
    return (sum(changed) / len(changed), _noise(changed)) if changed else (median(latest), _noise(latest))


def _latest_of_another_kind(steps: Sequence[float]) -> Sequence[float]:
    """As few of the latest steps as show that they differ from those before; none when they do not.

    The error of a mean of k is the spread over the root of k; that of a median of m is 1.57 times as much, squared.
    """
    for count in LATEST:
        earlier, last = steps[:-count], steps[-count:]
        if len(earlier) < BEFORE:
            return ()
        error = _spread(earlier) * math.sqrt(1 / count + 1.57 / len(earlier))
        if abs(sum(last) / count / median(earlier) - 1) > max(CHANGED, SURELY * error):
            return last
    return ()


def _demand(stream: StreamSignals) -> Demand | None:
    compute = [value for value in stream.compute_s if _LEAST < value < _MOST]
    if not compute or not _LEAST < stream.groups_per_step < _MOST:
        return None
    factor = stream.produced_per_usable if 1 <= stream.produced_per_usable < _MOST else 1.0
    seconds, noise = usual_compute_s(compute)
    rate = stream.groups_per_step / seconds * factor
    return Demand(stream=stream, compute_s=seconds, groups_per_s=rate, noise=noise)


def _noise(values: Sequence[float]) -> float:
    return _spread(values) / math.sqrt(len(values))


def _spread(values: Sequence[float]) -> float:
    usual = median(values)
    deviation = median([abs(value - usual) for value in values])
    return float(SPREAD * deviation / usual)
