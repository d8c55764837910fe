"""Thread for blocking calls that never delays the end of the process."""

import asyncio
import subprocess
import sys
import threading

import pytest

from astraflow.trainer.worker import BackendThread


@pytest.mark.anyio
async def test_calls_run_in_one_thread_in_order() -> None:
    with BackendThread("test") as worker:
        names = await asyncio.gather(*(worker.call(_thread_name) for _ in range(5)))
    assert names == ["test"] * 5


@pytest.mark.anyio
async def test_an_error_is_raised_in_the_caller_and_the_worker_continues() -> None:
    with BackendThread("test") as worker:
        with pytest.raises(ZeroDivisionError):
            await worker.call(lambda: 1 / 0)
        assert await worker.call(lambda: 7) == 7


@pytest.mark.anyio
async def test_a_cancelled_call_is_not_waited_for() -> None:
    release = threading.Event()
    with BackendThread("test") as worker:
        call = asyncio.create_task(worker.call(release.wait))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    release.set()


PROGRAM = """
import asyncio, sys, threading
from astraflow.trainer.worker import BackendThread

async def main():
    began = threading.Event()
    def forever():
        began.set()
        threading.Event().wait()
    with BackendThread("test") as worker:
        call = asyncio.create_task(worker.call(forever))
        await asyncio.to_thread(began.wait)
        call.cancel()
        if {is_abandoned}:
            worker.abandon()

asyncio.run(main())
print("end of the program")
"""


@pytest.mark.long
@pytest.mark.parametrize(("is_abandoned", "code"), [(True, 0), (False, 1)])
def test_a_process_can_end_during_a_call(is_abandoned: bool, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(is_abandoned=is_abandoned)], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "end of the program\n", "")


ENDINGS = """
import asyncio, collections, os, sys
import torch
from astraflow.trainer.worker import BackendThread

async def main(number):
    with BackendThread("test") as worker:
        async def work():
            while True:
                await worker.call(lambda: torch.randn(64, 64) @ torch.randn(64, 64))
        task = asyncio.create_task(work())
        await asyncio.sleep(0.005 + 0.014 * number / {count})
        task.cancel()
        worker.abandon()

torch.set_num_threads(1)
codes = collections.Counter()
for number in range({count}):
    child = os.fork()
    if child == 0:
        asyncio.run(main(number))
        sys.exit(0)
    codes[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
print(dict(codes))
"""


@pytest.mark.parametrize("count", [6, pytest.param(40, marks=pytest.mark.long)])
def test_a_process_that_ends_between_calls_of_torch_does_not_abort(count: int) -> None:
    program = ENDINGS.replace("{count}", str(count))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, [f"{{0: {count}}}"]), ended.stderr[-2000:]


def _thread_name() -> str:
    return threading.current_thread().name
