"""Requests to a process fail together when it is lost, for whatever reason, and workers end with their parent."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from astraflow.runtime.processes.requests import Loss, ProcessLost, RequestProcess
from tests.runtime.processes.test_child import until


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of services. Others' tests run on asyncio's."""
    return "asyncio", {"use_uvloop": True}


ECHO = """
import json, os, subprocess, sys, time
from astraflow.runtime.processes.requests import Answers
answers = Answers()
for line in sys.stdin.buffer:
    request = json.loads(line)
    exec(request.get("first", ""))
    answers.send(request["number"], text=request["text"])
"""


async def started(program: str = ECHO) -> RequestProcess:
    return await RequestProcess.spawn_answering(
        sys.executable, "-c", program, environment=os.environ, max_answer_bytes=2**16, keeps_errors=True
    )


async def losses(*requests: asyncio.Future[dict[str, Any]]) -> list[Loss]:
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    return [outcome.loss for outcome in outcomes if isinstance(outcome, ProcessLost)]


@pytest.mark.anyio
async def test_prints_and_programs_of_a_process_do_not_disturb_its_answers() -> None:
    process = await started()
    loud = "print('{}'); subprocess.run(['echo', 'x'])"
    assert await process.request({"text": "ä\n\0", "first": loud}, limit_s=60) == {"text": "ä\n\0"}
    await process.stop(grace_s=60)
    assert process.code == 0
    assert process.last_errors == "{} | x" or process.last_errors == "x | {}"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("first", "loss"),
    [
        ("os._exit(3)", Loss.ENDED),
        ("os.kill(os.getpid(), 9)", Loss.ENDED),
        ("time.sleep(600)", Loss.TIMEOUT),
        ("os.kill(os.getpid(), 19)", Loss.TIMEOUT),
        ("answers.send(0, text='x' * 2**17)", Loss.OUTPUT),
        ("answers._output.write(b'7\\n')", Loss.OUTPUT),
    ],
    ids=["exit", "killed", "hang", "suspended", "long", "no object"],
)
async def test_all_requests_of_a_lost_process_fail_and_so_do_later_ones(first: str, loss: Loss) -> None:
    process = await started()
    assert (await process.request({"text": "a"}, limit_s=60))["text"] == "a"
    escaped = "subprocess.Popen(['sleep', '600'], start_new_session=True)"  # holds standard error open
    group = f"subprocess.Popen(['sleep', '600']); print({escaped}.pid, flush=True); {first}; answers._output.flush()"
    limit_s = 2.0 if loss is Loss.TIMEOUT else 60.0
    failed = await losses(
        asyncio.ensure_future(process.request({"text": "b", "first": group}, limit_s=limit_s)),
        asyncio.ensure_future(process.request({"text": "c"}, limit_s=60)),
    )
    assert failed == [loss, loss]
    assert not process.is_usable
    assert await losses(asyncio.ensure_future(process.request({"text": "d"}, limit_s=60))) == [loss]
    await until(lambda: not any(is_in_group(each, process.pid) for each in psutil.process_iter()))
    await process.stop(grace_s=60)
    os.kill(int(process.last_errors), signal.SIGKILL)


def is_in_group(process: psutil.Process, group: int) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


@pytest.mark.anyio
async def test_a_cancelled_request_keeps_its_time_limit_and_a_deadline_that_has_passed_kills() -> None:
    process = await started()
    await process.request({"text": "a"}, limit_s=60)
    request = asyncio.create_task(process.request({"text": "b", "first": "time.sleep(600)"}, limit_s=0.1))
    await asyncio.sleep(0)
    request.cancel()
    assert await process.wait() == -signal.SIGKILL
    await process.stop()
    other = await started()
    assert await losses(asyncio.ensure_future(other.request({"text": "a"}, limit_s=0.0))) == [Loss.TIMEOUT]
    await other.stop()


WORKERS = {
    "reward": (
        "from astraflow.rewards.worker_pool import WorkerPool\n"
        "async def start():\n"
        "  pool = WorkerPool('astraflow.rewards.mathematics.votes:compare', workers=1, limit_s=60.0)\n"
        "  await pool.start()\n"
    ),
    "environment": (
        "from astraflow.environments.adapters.worker_process import start_worker\n"
        "async def start(): return await start_worker({'kind': 'textcraft'}, is_game=False, python='', episodes=1, "
        "limit_s=120.0)\n"
    ),
    "agents": (
        "from astraflow.agents.programs.callables import _ForkServer\n"
        "async def start():\n  global server\n  server = _ForkServer(()); await server.start()\n"
    ),
}


@pytest.mark.parametrize("worker", WORKERS)
def test_workers_end_when_their_parent_is_killed(worker: str) -> None:
    program = (
        f"{WORKERS[worker]}\nimport asyncio, psutil\nasync def main():\n  worker = await start()\n"
        "  print(psutil.Process().children()[0].pid, flush=True); await asyncio.sleep(600)\nasyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if worker != "agents":  # which ends its agents first, and reads the end of its input
            child.suspend()
        parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=30)
    assert gone == [child]
