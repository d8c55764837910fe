import asyncio

import pytest

from astraflow.contract.nodes import Directive
from astraflow.raas.drain_state import DrainState
from tests.fakes.clock import ManualClock, settle

pytestmark = pytest.mark.anyio


def drain(deadline_s: float = 0.0, reason: str = "fewer are needed") -> Directive:
    return Directive(action="drain", reason=reason, deadline_s=deadline_s)


async def test_other_directives_do_not_start_a_drain() -> None:
    drain_state = DrainState(ManualClock(), hand_back_s=2)
    for action in ("continue_running", "dance"):
        drain_state.apply_directive(Directive(action=action))
    assert (drain_state.draining.is_set(), drain_state.reason) == (False, "")


async def test_tasks_are_returned_at_the_deadline_minus_the_return_time() -> None:
    clock = ManualClock()
    drain_state = DrainState(clock, hand_back_s=2)
    drain_state.apply_directive(drain(deadline_s=30))
    due = asyncio.create_task(drain_state.wait_until_due())
    await clock.pass_time(27.9)
    assert not due.done()
    await clock.pass_time(0.2)
    assert due.done()


async def test_a_drain_without_a_deadline_waits_until_one_is_set() -> None:
    clock = ManualClock()
    drain_state = DrainState(clock, hand_back_s=2)
    drain_state.apply_directive(drain())
    due = asyncio.create_task(drain_state.wait_until_due())
    await clock.pass_time(100_000)
    assert not due.done()
    drain_state.apply_directive(drain(deadline_s=12))
    await clock.pass_time(9.9)
    assert not due.done()
    await clock.pass_time(0.2)
    assert due.done()


async def test_the_first_reason_and_the_earliest_deadline_apply() -> None:
    clock = ManualClock()
    drain_state = DrainState(clock, hand_back_s=2)
    drain_state.drain_within(22, "preempted")
    due = asyncio.create_task(drain_state.wait_until_due())
    for _ in range(3):
        drain_state.apply_directive(drain(deadline_s=3600))
    drain_state.finish_within(5, "stopped")
    await clock.pass_time(5)
    assert due.done()
    assert drain_state.reason == "preempted"


@pytest.mark.parametrize("order", [drain(deadline_s=1), Directive(action="leave", reason="now")])
async def test_a_drain_without_remaining_time_is_due_immediately(order: Directive) -> None:
    drain_state = DrainState(ManualClock(), hand_back_s=2)
    drain_state.apply_directive(order)
    due = asyncio.create_task(drain_state.wait_until_due())
    await settle()
    assert due.done()
