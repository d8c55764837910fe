import pytest

from astraflow.dataflow.issuing.patience import (
    FACTOR,
    FIRST_S,
    MAX_DOUBLINGS,
    MEASURED,
    MIN_S,
    WINDOW,
    Durations,
    longest_s,
)


def measured(*durations_s: float) -> Durations:
    durations = Durations()
    for duration_s in durations_s:
        durations.add(duration_s)
    return durations


def test_before_episodes_were_measured_the_patience_is_short() -> None:
    durations = measured(*[1000.0] * (MEASURED - 1))
    assert [durations.patience_s(requeues=requeues) for requeues in range(3)] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]


def test_the_patience_follows_the_median_and_doubles_with_each_requeue() -> None:
    durations = measured(*[100.0] * 9, *[10_000.0] * 8)
    waits = [durations.patience_s(requeues=requeues) for requeues in range(3)]
    assert waits == [FACTOR * 100, 2 * FACTOR * 100, 4 * FACTOR * 100]


def test_short_episodes_have_the_least_patience() -> None:
    assert measured(*[0.1] * MEASURED).patience_s(requeues=0) == MIN_S


def test_any_number_of_nodes_that_held_a_task_leave_the_patience_finite() -> None:
    for durations in (Durations(), measured(*[0.1] * MEASURED)):
        assert durations.patience_s(requeues=10_000) == durations.patience_s(requeues=MAX_DOUBLINGS) <= 64 * FIRST_S


def test_old_durations_are_forgotten() -> None:
    assert measured(*[1.0] * 1000, *[60.0] * WINDOW).patience_s(requeues=0) == FACTOR * 60


@pytest.mark.parametrize(("limit_s", "longest"), [(60.0, 90.0), (0.0, 990.0), (7_200.0, 7_920.0), (1e18, 11_000.0)])
def test_no_task_is_kept_much_longer_than_an_episode_may_take(limit_s: float, longest: float) -> None:
    assert longest_s(limit_s, ceiling_s=10_000.0) == longest
