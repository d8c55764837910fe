import asyncio

import pytest

from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.raas.tasks.capacity import MAX_BACKOFF_S, CircuitBreaker
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

ENGINE = Failure(boundary=Boundary.ENGINE, message="gone")
REWARD = Failure(boundary=Boundary.REWARD, message="no answer")


async def rested_s(breaker: CircuitBreaker, clock: ManualClock) -> float:
    began = clock.now()
    resting = asyncio.create_task(breaker.wait_for_retry())
    while not resting.done():
        await clock.pass_time(0.5)
    return clock.now() - began - 0.5


async def test_the_breaker_opens_after_consecutive_failures_with_growing_pauses() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(lambda: 3, clock)
    for failure in (ENGINE, ENGINE, None, ENGINE, ENGINE, REWARD, ENGINE, ENGINE):
        breaker.record_outcome(failure)
    assert not breaker.is_open

    breaker.record_outcome(ENGINE)
    rests = [await rested_s(breaker, clock)]
    for _ in range(6):
        breaker.record_outcome(ENGINE)
        rests.append(await rested_s(breaker, clock))

    assert rests[0] <= 1 < rests[2] < rests[3]
    assert max(rests) <= MAX_BACKOFF_S
    assert breaker.is_open


async def test_one_success_closes_the_breaker() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(lambda: 1, clock)
    breaker.record_outcome(ENGINE)
    breaker.record_outcome(None)

    assert not breaker.is_open
    await breaker.wait_for_retry()


async def test_failures_during_a_pause_do_not_prolong_it() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(lambda: 2, clock)
    for _ in range(50):
        breaker.record_outcome(ENGINE)

    assert await rested_s(breaker, clock) <= 1
