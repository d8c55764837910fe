"""Confidence intervals of figures that are means over prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import sqrt
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
"""Resampled sets of prompts of a bootstrap. Count."""

_CHUNK_ELEMENTS = 2**22


class IntervalMethod(Enum):
    """Method of a confidence interval."""

    WILSON = "wilson"
    """Score interval of a share: every prompt has 0 or 1."""
    BOOTSTRAP = "bootstrap"
    """Percentiles of the means of resampled prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Confidence interval of a mean over prompts, for the prompts that the dataset could have had instead."""

    low: float
    high: float
    method: IntervalMethod


def interval_of(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Returns the 95 % interval of the mean of one value for each prompt; None for less than two prompts.

    Prompts are independent; the samples of one are not, so that they count once, by their value. Where every value is 0
    or 1 the figure is a share, and Wilson's interval is right for few prompts and for shares of 0 and 1, for which a
    bootstrap has no width. seed: of the bootstrap.
    """
    if len(values) < 2:
        return None
    if all(value in (0, 1) for value in values):
        return wilson(sum(value == 1 for value in values), len(values))
    return bootstrap(values, seed=seed)


def wilson(successes: int, trials: int) -> Interval:
    """Returns the score interval of a share, without correction for continuity.

    Source: Wilson, J. Am. Stat. Assoc. 22 (1927).

    >>> interval = wilson(8, 10)
    >>> round(interval.low, 4), round(interval.high, 4)
    (0.4902, 0.9433)
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share = successes / trials
    centre = share + z**2 / (2 * trials)
    spread = z * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    scale = 1 + z**2 / trials
    # The bounds are exact at 0 and 1, where rounding would leave a rest.
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == trials else (centre + spread) / scale
    return Interval(low=low, high=high, method=IntervalMethod.WILSON)


def bootstrap(values: Sequence[float], *, seed: int) -> Interval:
    """Returns the percentile interval of the mean over resampled values.

    Source: Efron, Ann. Stat. 7 (1979).
    """
    observed, generator = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    rows = max(1, _CHUNK_ELEMENTS // len(observed))
    means = np.concatenate(
        [
            observed[generator.integers(len(observed), size=(min(rows, RESAMPLES - begin), len(observed)))].mean(axis=1)
            for begin in range(0, RESAMPLES, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(low=float(low), high=float(high), method=IntervalMethod.BOOTSTRAP)
