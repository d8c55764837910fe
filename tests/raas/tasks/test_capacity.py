import pytest

from astraflow.raas.tasks.capacity import Capacity
from tests.fakes.clock import ManualClock


def test_busy_and_blocked_time_follow_used_and_free_slots() -> None:
    clock = ManualClock()
    capacity = Capacity(4, clock)
    clock.advance(10)  # not accepting yet: neither busy nor blocked
    capacity.set_accepting(True)
    clock.advance(2)
    capacity.acquire()
    capacity.acquire()
    capacity.acquire()
    clock.advance(4)
    capacity.release()
    capacity.set_accepting(False)
    clock.advance(1)

    busy_s, blocked_s = capacity.busy_and_blocked_s()

    assert busy_s == pytest.approx(4 * 0.75 + 1 * 0.5)
    assert blocked_s == pytest.approx(2 + 4 * 0.25)
    assert (capacity.used_slots, capacity.free_slots) == (2, 2)


def test_busy_and_blocked_time_are_relative_to_the_limit_in_effect() -> None:
    clock = ManualClock()
    capacity = Capacity(4, clock)
    capacity.set_accepting(True)
    for _ in range(4):
        capacity.acquire()
    clock.advance(2)
    capacity.set_slots(8)
    clock.advance(2)
    capacity.set_slots(2)
    clock.advance(2)

    assert capacity.busy_and_blocked_s() == pytest.approx((2 + 2 * 0.5 + 2, 2 * 0.5))
    assert capacity.free_slots == 0
