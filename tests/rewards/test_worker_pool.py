"""A call that hangs is killed and blocks no other; a lost worker is a retry or a failure, never a result."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from astraflow.contract.errors import RateLimited, Unavailable
from astraflow.rewards.worker_pool import CallFailed, CallKilled, WorkerPool
from astraflow.runtime.processes.requests import ProcessLost
from tests.errors import raises_code

ECHO = "tests.rewards.worker_functions:echo"


@asynccontextmanager
async def started(
    function: str = ECHO, *, workers: int = 1, limit_s: float = 30.0, **more: int
) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(function, workers=workers, limit_s=limit_s, **more)
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


@pytest.mark.anyio
async def test_calls_return_json_and_errors_are_raised_again() -> None:
    async with started() as pool:
        assert await pool.call({"text": "ä\n\0", "numbers": [1, 2.5, None]}) == {
            "text": "ä\n\0",
            "numbers": [1, 2.5, None],
        }
        with raises_code(CallFailed, "worker.call_failed"):
            await pool.call({"raises": True})
        assert await pool.call("still there") == "still there"


@pytest.mark.long
@pytest.mark.anyio
async def test_a_printed_text_is_no_reply_and_no_secret_reaches_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    async with started() as pool:
        assert await pool.call({"prints": True}) == {"prints": True}
        assert "JUDGE_KEY" not in await pool.call({"variables": True})


@pytest.mark.long
@pytest.mark.anyio
async def test_a_hanging_call_is_killed_while_another_worker_continues() -> None:
    async with started(workers=2, limit_s=1.0) as pool:
        hanging = asyncio.create_task(pool.call({"hangs": True}))
        await asyncio.sleep(0)
        assert await pool.call("next") == "next"
        assert not hanging.done()
        with pytest.raises(CallKilled):
            await hanging
        assert pool.killed == 1
        assert [await pool.call(number) for number in range(4)] == [0, 1, 2, 3]


@pytest.mark.anyio
async def test_time_in_which_a_call_does_not_compute_is_no_processor_time() -> None:
    async with started(limit_s=0.05) as pool:
        assert await pool.call({"sleeps": 0.3}) == {"sleeps": 0.3}
        assert (pool.killed, pool.lost) == (0, 0)


@pytest.mark.anyio
async def test_a_call_that_stalls_is_given_to_other_workers_and_fails_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.rewards.worker_pool.MIN_STALL_S", 0.2)
    async with started(limit_s=0.01) as pool:
        with raises_code(Unavailable, "worker.lost"):
            await pool.call({"sleeps": 60})
        assert (pool.killed, pool.lost) == (0, 3)
        assert await pool.call(1) == 1


@pytest.mark.anyio
async def test_a_call_whose_worker_is_killed_from_outside_is_given_to_another() -> None:
    async with started(workers=1) as pool:
        call = asyncio.create_task(pool.call({"sleeps": 0.5}))
        await asyncio.sleep(0.1)
        os.kill(pool.process_ids[0], signal.SIGKILL)
        assert await call == {"sleeps": 0.5}
        assert (pool.lost, pool.killed) == (1, 0)


@pytest.mark.anyio
async def test_a_call_that_ends_every_worker_fails() -> None:
    async with started(workers=2) as pool:
        with raises_code(Unavailable, "worker.lost"):
            await pool.call({"exits": True})
        assert await pool.call(1) == 1


@pytest.mark.long
@pytest.mark.anyio
async def test_idle_workers_that_are_killed_are_replaced() -> None:
    async with started(workers=2) as pool:
        for process_id in pool.process_ids:
            os.kill(process_id, signal.SIGKILL)
        assert [await pool.call(number) for number in range(3)] == [0, 1, 2]


@pytest.mark.anyio
async def test_a_function_that_cannot_be_imported_fails_at_the_start() -> None:
    pool = WorkerPool("tests.rewards.no_such_module:call", workers=1, limit_s=1.0)
    with raises_code(Unavailable, "worker.not_started"):
        await pool.start()
    await pool.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_memory_is_bounded() -> None:
    async with started(memory_bytes=512 * 2**20) as pool:
        with raises_code(CallFailed, "worker.call_failed"):
            await pool.call({"allocates": 2**30})
        assert await pool.call(1) == 1


@pytest.mark.anyio
async def test_the_number_of_waiting_calls_is_bounded() -> None:
    async with started(max_waiting=2) as pool:
        running = [asyncio.create_task(pool.call({"sleeps": 0.3})) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with raises_code(RateLimited, "worker.queue_full"):
            await pool.call(1)
        assert len(await asyncio.gather(*running)) == 3


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_no_reply_for_the_next() -> None:
    async with started() as pool:
        call = asyncio.create_task(pool.call({"sleeps": 30}))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await pool.call("next") == "next"


@pytest.mark.long
@pytest.mark.anyio
async def test_a_worker_ends_by_itself_once_its_pool_is_gone() -> None:
    pool = WorkerPool(ECHO, workers=1, limit_s=0.5)
    await pool.start()
    (process,) = pool._processes
    with pytest.raises(ProcessLost):
        await process.request({"call": {"hangs": True}}, limit_s=60.0)
    assert process.code == -signal.SIGPROF
    await pool.close()
