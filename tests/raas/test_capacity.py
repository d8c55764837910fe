import pytest

from astraflow.raas.capacity import Capacity
from tests.fakes.clock import ManualClock


def test_time_is_shared_out_between_used_and_free_slots() -> None:
    clock = ManualClock()
    capacity = Capacity(4, clock)
    clock.advance(10)  # not open yet: neither busy nor blocked
    capacity.set_open(True)
    clock.advance(2)
    capacity.take()
    capacity.take()
    capacity.take()
    clock.advance(4)
    capacity.release()
    capacity.set_open(False)
    clock.advance(1)

    busy_s, blocked_s = capacity.times()

    assert busy_s == pytest.approx(4 * 0.75 + 1 * 0.5)
    assert blocked_s == pytest.approx(2 + 4 * 0.25)
    assert (capacity.used, capacity.free) == (2, 2)
