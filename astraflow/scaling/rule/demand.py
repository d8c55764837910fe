"""Estimates the demand: groups a second that keep every trainer busy, from the compute time of steps alone.

The rate of incoming groups does not measure demand once the buffer is full: a pool of any size then produces exactly
what the trainer consumes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from astraflow.scaling.measurement.signals import StreamSignals

STEPS = 6
"""Number of latest compute times in the estimate."""

MAD_TO_SIGMA = 1.48
"""Standard deviation of normal noise over its median absolute deviation."""

CHANGE_SHARE = 0.25
"""Share by which the latest two steps must both differ from the median of the earlier steps to be used without them.
They must also differ by more than the noise, `CHANGE_SIGMA`."""

CHANGE_SIGMA = 2.5
"""Standard deviations by which each of the latest two steps must differ."""

MEAN_CHANGE_SIGMA = 3.5
"""Standard errors by which the mean of the latest three, four or five steps must differ."""

CHANGED_STEP_COUNTS = (3, 4, 5)
MIN_EARLIER_STEPS = 5
"""Minimum number of earlier steps for the usual compute time and its spread."""

_MIN_MEASURABLE, _MAX_MEASURABLE = 1e-6, 1e9
"""Bounds of plausible measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand of the policy with the largest demand."""

    stream: StreamSignals
    compute_s: float
    groups_per_s: float
    """Groups to be produced a second, before filters."""
    noise: float
    """Standard error of `compute_s`, as a share of it."""


def demand_of(streams: Sequence[StreamSignals]) -> Demand | None:
    """Returns the largest demand of any policy, because a group serves all of them; None before the first step."""
    demands = [demand for demand in map(_demand, streams) if demand is not None]
    return max(demands, key=lambda demand: demand.groups_per_s, default=None)


def usual_compute_s(compute_s: Sequence[float]) -> tuple[float, float]:
    """Returns the median of the latest six steps, or the mean of the latest few if they clearly differ; and its noise.

    Two steps alone miss a change that noise hides in one of them, and a median of six follows a change only after four
    steps. The means of the latest three to five steps are therefore tested too.

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
        threshold = max(CHANGE_SHARE, CHANGE_SIGMA * _spread(list(compute_s)[:-2]))
        if min(changes) > threshold or max(changes) < -threshold:
            return sum(last) / 2, _noise(last)
    changed = _changed_steps(list(compute_s))
    return (sum(changed) / len(changed), _noise(changed)) if changed else (median(latest), _noise(latest))


def _changed_steps(steps: Sequence[float]) -> Sequence[float]:
    """Returns the fewest latest steps that differ significantly from the earlier steps; empty when none do.

    The standard error of the mean of k steps is spread / sqrt(k), and of the median of m steps spread * sqrt(1.57 / m).
    """
    for count in CHANGED_STEP_COUNTS:
        earlier, last = steps[:-count], steps[-count:]
        if len(earlier) < MIN_EARLIER_STEPS:
            return ()
        error = _spread(earlier) * math.sqrt(1 / count + 1.57 / len(earlier))
        if abs(sum(last) / count / median(earlier) - 1) > max(CHANGE_SHARE, MEAN_CHANGE_SIGMA * error):
            return last
    return ()


def _demand(stream: StreamSignals) -> Demand | None:
    compute = [value for value in stream.compute_s if _MIN_MEASURABLE < value < _MAX_MEASURABLE]
    if not compute or not _MIN_MEASURABLE < stream.groups_per_step < _MAX_MEASURABLE:
        return None
    factor = stream.produced_per_usable if 1 <= stream.produced_per_usable < _MAX_MEASURABLE else 1.0
    seconds, noise = usual_compute_s(compute)
    rate = stream.groups_per_step / seconds * factor
    return Demand(stream=stream, compute_s=seconds, groups_per_s=rate, noise=noise)


def _noise(values: Sequence[float]) -> float:
    return _spread(values) / math.sqrt(len(values))


def _spread(values: Sequence[float]) -> float:
    usual = median(values)
    deviation = median([abs(value - usual) for value in values])
    return float(MAD_TO_SIGMA * deviation / usual)
