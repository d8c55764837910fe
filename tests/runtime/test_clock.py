"""Clock that leaves out the time in which a service did not run, and the day that only moves forward."""

import pytest

from astraflow.runtime.clock import DAY_S, AwakeClock, StoredTimes, UtcDay
from tests.fakes.clock import ManualClock

GAP_S = 5.0


class TwoTimes(ManualClock):
    """Clock whose wall time can be put ahead of its monotonic time."""

    ahead_s = 0.0

    def wall(self) -> float:
        return self.now() + self.ahead_s


def test_a_gap_is_left_out_once_and_reported_once() -> None:
    clock = ManualClock()
    awake = AwakeClock(clock, gap_s=GAP_S)
    before = awake.now()
    clock.advance(60)
    assert awake.now() == before
    clock.advance(1)
    assert awake.now() == before + 1
    assert awake.take_suspension_s() == 60
    assert awake.take_suspension_s() == 0
    assert awake.wall() == clock.wall()


def test_a_service_that_reads_the_time_often_enough_leaves_nothing_out() -> None:
    clock = ManualClock()
    awake = AwakeClock(clock, gap_s=GAP_S)
    before = awake.now()
    for _ in range(20):
        clock.advance(GAP_S)
        awake.now()
    assert awake.now() == before + 20 * GAP_S
    assert awake.take_suspension_s() == 0


@pytest.mark.parametrize(
    ("monotonic_s", "ahead_s", "suspended_s"),
    [
        (0.0, 60.0, 60.0),  # the machine slept, and its monotonic time stood still
        (60.0, 60.0, 120.0),  # its process was stopped, and the machine slept besides
        (60.0, -3600.0, 60.0),  # the clock was set back meanwhile
        (0.25, 0.5, 0.0),
        (0.25, -3600.0, 0.0),
    ],
)
def test_the_clock_that_shows_more_of_a_suspension_counts(
    monotonic_s: float, ahead_s: float, suspended_s: float
) -> None:
    clock = TwoTimes()
    awake = AwakeClock(clock, gap_s=GAP_S)
    before = awake.now()
    clock.advance(monotonic_s)
    clock.ahead_s = ahead_s
    assert awake.take_suspension_s() == suspended_s
    assert awake.now() == before + (monotonic_s if monotonic_s < GAP_S else 0.0)
    assert awake.take_suspension_s() == 0.0


def test_small_differences_of_the_clocks_do_not_add_up() -> None:
    clock = TwoTimes()
    awake = AwakeClock(clock, gap_s=GAP_S)
    for _ in range(100):
        clock.advance(1)
        clock.ahead_s += 1
        assert awake.take_suspension_s() == 0.0


def test_a_stored_time_ages_without_the_steps_of_the_wall_clock() -> None:
    clock = TwoTimes()
    times, at = StoredTimes(clock), clock.wall()
    clock.advance(100.0)
    assert times.age_s(at) == 100.0
    clock.ahead_s = 3600.0
    assert times.age_s(at) == 100.0
    clock.advance(20.0)
    assert times.age_s(at) == 120.0
    assert times.age_s(clock.wall() - 5.0) == 5.0, "stored after the step"
    clock.ahead_s = -3600.0
    assert times.age_s(at) == 0.0
    clock.advance(30.0)
    assert times.age_s(at) == 30.0
    clock.ahead_s += 100.0
    assert times.age_s(clock.wall()) == 0.0
    clock.ahead_s -= 1000.0
    assert times.age_s(clock.wall()) == 0.0
    later = clock.wall()
    clock.advance(20.0)
    assert times.age_s(later) == 20.0, "an earlier step does not count for a time stored after a step back"
    clock.ahead_s += 1.0
    assert times.age_s(clock.wall() - 5.0) == 5.0, "a correction of a second is no step"
    assert StoredTimes(clock).age_s(at) == 0.0, "a restarted process knows no step"


def test_a_day_moves_forward_only_and_is_not_repeated_after_a_step_back_over_midnight() -> None:
    clock = TwoTimes(10 * DAY_S - 60)
    day = UtcDay(clock)
    clock.advance(90)
    assert (day.has_changed(), day.number) == (True, 10)
    clock.ahead_s = -60  # 23:59:30 again
    assert (day.has_changed(), day.number) == (False, 10)
    assert day.left_s == DAY_S, "by the clock the day is longer; no day is longer than 24 hours"
    clock.advance(60)
    assert (day.has_changed(), day.number) == (False, 10)
    clock.ahead_s = 0
    clock.advance(DAY_S - 60)
    assert (day.has_changed(), day.number) == (True, 11)


def test_a_clock_that_was_ahead_by_years_does_not_hold_the_day() -> None:
    clock = TwoTimes(DAY_S)
    clock.ahead_s = 3000 * DAY_S
    day = UtcDay(clock)
    clock.ahead_s = 0
    clock.advance(DAY_S - 1)
    assert (day.has_changed(), day.left_s) == (False, 1)
    clock.advance(1)
    assert (day.has_changed(), day.number) == (True, 2)
    day.include(5.5 * DAY_S)
    assert (day.has_changed(), day.number) == (False, 5)
