import numpy as np
import pytest

from astraflow.baselines.intervals import Interval, IntervalMethod, bootstrap, interval_of, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_score_interval_has_published_values(successes: int, trials: int, low: float, high: float) -> None:
    interval = wilson(successes, trials)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)
    mirrored = wilson(trials - successes, trials)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.long
def test_the_bootstrap_agrees_with_the_normal_interval_of_many_values() -> None:
    values = np.random.default_rng(1).beta(2, 3, size=2000)
    interval = bootstrap(values.tolist(), seed=0)
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert interval.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)
    assert interval == bootstrap(values.tolist(), seed=0)


@pytest.mark.long
def test_the_bootstrap_covers_the_mean_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        interval = bootstrap((generator.binomial(4, 0.3, size=60) / 4).tolist(), seed=0)
        covered += interval.low <= 0.3 <= interval.high
    assert 180 <= covered <= 198


def test_the_method_follows_from_the_values() -> None:
    assert interval_of([1.0]) is None
    assert interval_of([]) is None
    share = interval_of([1.0, 0.0, 1.0])
    assert share is not None
    assert share == wilson(2, 3)
    mean = interval_of([1.0, 0.5, 1.0])
    assert mean is not None
    assert mean.method is IntervalMethod.BOOTSTRAP
    assert interval_of([0.25, 0.25]) == Interval(low=0.25, high=0.25, method=IntervalMethod.BOOTSTRAP)


@pytest.mark.long
def test_a_large_bootstrap_is_drawn_in_parts() -> None:
    values = np.linspace(0, 2, 5000).tolist()
    interval = bootstrap(values, seed=0)
    assert interval.low < 1 < interval.high
