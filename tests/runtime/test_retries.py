"""Retries and periods on a clock that the test advances."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
import structlog

from astraflow.contract.errors import Conflict, DeadlineExceeded, InvalidInput, StorageFull, Unavailable
from astraflow.runtime.retries import current_waits, periodic, retry
from tests.errors import raises_code
from tests.fakes.clock import ManualClock, settle


class Flaky:
    """Fails with the given errors, one per call, then answers."""

    def __init__(self, clock: ManualClock, *problems: Exception) -> None:
        self._clock = clock
        self._problems = list(problems)
        self.called_at: list[float] = []

    async def __call__(self) -> str:
        self.called_at.append(self._clock.now())
        if self._problems:
            raise self._problems.pop(0)
        return "answer"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=0.0)


@pytest.fixture
def without_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)


@pytest.mark.anyio
async def test_a_successful_call_is_not_repeated(clock: ManualClock) -> None:
    call = Flaky(clock)
    assert await retry(call, what="asking", clock=clock) == "answer"
    assert call.called_at == [0.0]


@pytest.mark.anyio
@pytest.mark.usefixtures("without_jitter")
async def test_retry_delays_double_up_to_a_limit(clock: ManualClock) -> None:
    call = Flaky(clock, *[Unavailable("away")] * 7)
    answer = asyncio.create_task(retry(call, what="asking", clock=clock))
    await clock.pass_time(60)
    assert await answer == "answer"
    assert call.called_at == pytest.approx([0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1])


@pytest.mark.anyio
async def test_retry_delays_have_jitter(clock: ManualClock) -> None:
    calls = [Flaky(clock, Unavailable("away")) for _ in range(50)]
    answers = [asyncio.create_task(retry(call, what="asking", clock=clock)) for call in calls]
    await clock.pass_time(1)
    assert [await answer for answer in answers] == ["answer"] * 50
    delays = [call.called_at[1] for call in calls]
    assert 0.07 <= min(delays) < max(delays) <= 0.13
    assert len(set(delays)) > 40


@pytest.mark.anyio
@pytest.mark.parametrize("problem", [InvalidInput("no"), Conflict("no"), StorageFull("no"), ZeroDivisionError()])
async def test_a_permanent_error_is_raised_without_a_retry(clock: ManualClock, problem: Exception) -> None:
    call = Flaky(clock, problem)
    with pytest.raises(type(problem)):
        await retry(call, what="asking", clock=clock)
    assert call.called_at == [0.0]


@pytest.mark.anyio
async def test_a_call_that_is_repeated_is_listed_with_its_problem_until_it_ends(clock: ManualClock) -> None:
    call = Flaky(clock, *[StorageFull("full")] * 3)
    answer = asyncio.create_task(retry(call, what="writing", retry_on=(StorageFull,), first_delay_s=4, clock=clock))
    await settle()
    listed = [current_waits(now=clock.now(), min_s=2)]
    await clock.pass_time(3)
    listed.append(current_waits(now=clock.now(), min_s=2))
    await clock.pass_time(30)
    await answer
    listed.append(current_waits(now=clock.now(), min_s=2))

    assert listed == [[], ["full"], []]


@pytest.mark.anyio
async def test_the_caller_can_choose_the_retried_errors(clock: ManualClock) -> None:
    call = Flaky(clock, StorageFull("full"))
    answer = asyncio.create_task(retry(call, what="writing", retry_on=(StorageFull,), clock=clock))
    await clock.pass_time(1)
    assert await answer == "answer"


@pytest.mark.anyio
@pytest.mark.usefixtures("without_jitter")
async def test_the_last_error_is_raised_before_the_time_limit(clock: ManualClock) -> None:
    call = Flaky(clock, *[Unavailable("first")] * 3, *[DeadlineExceeded("last")] * 9)
    answer = asyncio.create_task(retry(call, what="asking", give_up_after_s=1.0, clock=clock))
    await clock.pass_time(60)
    with raises_code(DeadlineExceeded, "deadline_exceeded", "last"):
        await answer
    assert call.called_at == pytest.approx([0.0, 0.1, 0.3, 0.7])


@pytest.mark.anyio
async def test_every_retry_is_logged(clock: ManualClock) -> None:
    call = Flaky(clock, Unavailable("unreachable"))
    with structlog.testing.capture_logs() as logs:
        answer = asyncio.create_task(retry(call, what="asking", clock=clock))
        await clock.pass_time(1)
        await answer
    assert logs == [
        {
            "event": "retrying",
            "log_level": "warning",
            "what": "asking",
            "problem": "unreachable",
            "waited_s": 0.0,
        }
    ]


@pytest.mark.anyio
async def test_a_waiting_retry_can_be_cancelled(clock: ManualClock) -> None:
    call = Flaky(clock, *[Unavailable("away")] * 99)
    answer = asyncio.create_task(retry(call, what="asking", clock=clock))
    await settle()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer


def noting(clock: ManualClock, began_at: list[float], *, takes_s: float = 0.0) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        began_at.append(clock.now())
        await clock.sleep(takes_s)

    return work


@pytest.mark.anyio
@pytest.mark.parametrize("takes_s", [0.0, 0.75])
async def test_periodic_work_starts_immediately_and_does_not_drift(clock: ManualClock, takes_s: float) -> None:
    began_at: list[float] = []
    running = asyncio.create_task(periodic(noting(clock, began_at, takes_s=takes_s), every_s=1.0, clock=clock))
    await clock.pass_time(4.5)
    assert began_at == [0.0, 1.0, 2.0, 3.0, 4.0]
    running.cancel()


@pytest.mark.anyio
async def test_late_periodic_runs_are_skipped(clock: ManualClock) -> None:
    began_at: list[float] = []
    running = asyncio.create_task(periodic(noting(clock, began_at, takes_s=2.5), every_s=1.0, clock=clock))
    await clock.pass_time(8)
    assert began_at == [0.0, 2.5, 5.0, 7.5]
    running.cancel()


@pytest.mark.anyio
async def test_an_error_of_periodic_work_ends_it(clock: ManualClock) -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await periodic(work, every_s=1.0, clock=clock)
