"""Sandbox on this machine."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import psutil
import pytest
import uvloop

from astraflow.contract.errors import InvalidInput
from astraflow.sandbox.base import Command, Job, JobLimits, Level, Outcome, Sandbox, SandboxError
from astraflow.sandbox.local import LocalSandbox, result_of
from astraflow.sandbox.options import LocalSandboxOptions
from astraflow.testing.sandboxes import LIMITS, SandboxSuite
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

LEVELS = ["namespaces", "restricted"]


async def started(**options: Any) -> LocalSandbox:
    sandbox = LocalSandbox(LocalSandboxOptions.model_validate({"workers": 2, **options}))
    try:
        await sandbox.start()
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


@pytest.fixture(params=LEVELS, scope="module")
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    """One sandbox per level for all tests of the module: it stays usable after every job."""
    sandbox = await started(level=request.param)
    assert sandbox.level is Level(request.param), sandbox.reasons
    yield sandbox
    await sandbox.close()


class TestLocal(SandboxSuite):
    @pytest.fixture
    def sandbox(self, sandbox: Sandbox) -> Sandbox:
        return sandbox


async def test_shared_memory_is_limited_and_a_jobs_own() -> None:
    sandbox = await started(level="namespaces", workers=1)
    write = "import os\nopen('/dev/shm/left', 'wb').write(bytes({size}))\nprint(os.listdir('/dev/shm'))"
    first = await sandbox.run(Job(source=write.format(size=2**20), limits=LIMITS))
    second = await sandbox.run(Job(source="import os\nprint(os.listdir('/dev/shm'))", limits=LIMITS))
    third = await sandbox.run(Job(source=write.format(size=2**27), limits=LIMITS))
    assert (first.stdout, second.stdout) == ("['left']\n", "[]\n")
    assert "OSError" in third.stderr
    await sandbox.close()


def processes_with(word: str) -> list[int]:
    return [process.pid for process in psutil.process_iter(["cmdline"]) if word in (process.info["cmdline"] or [])]


async def becomes(word: str, count: int) -> bool:
    """Waits up to 10 s until there are so many processes with an argument."""
    for _ in range(200):
        if len(processes_with(word)) == count:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_processes_that_a_job_leaves_are_ended(sandbox: LocalSandbox) -> None:
    source = "import os\nif os.fork() == 0: os.execv('/bin/sleep', ['sleep', '7771'])\nprint('left')"
    assert (await sandbox.run(Job(source=source, limits=LIMITS))).stdout == "left\n"
    assert await becomes("7771", 0)


async def test_a_job_that_is_cancelled_is_ended(sandbox: LocalSandbox) -> None:
    source = "import os; os.execv('/bin/sleep', ['sleep', '7772'])"
    running = asyncio.create_task(sandbox.run(Job(source=source, limits=JobLimits(wall_s=60))))
    assert await becomes("7772", 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await becomes("7772", 0)
    assert (await sandbox.run(Job(source="print(1)", limits=LIMITS))).stdout == "1\n"


async def test_the_end_of_a_session_ends_its_processes(sandbox: LocalSandbox) -> None:
    async with sandbox.session(LIMITS) as session:
        await session.shell("sleep 7773 & sleep 7773 & true")
        await session.python("import subprocess; child = subprocess.Popen(['sleep', '7773'])")
        assert await becomes("7773", 3)
    assert await becomes("7773", 0)


@pytest.mark.long
async def test_a_timeout_restarts_only_that_interpreter(sandbox: LocalSandbox) -> None:
    async with sandbox.session(LIMITS) as session:
        await session.shell("KEPT=yes; echo x > file")
        await session.python("kept = 1")
        result = await session.python("while True: pass", timeout_s=0.5)
        assert (result.outcome, result.exit_status) == (Outcome.TIMEOUT, None)
        assert "NameError" in (await session.python("kept")).stderr
        assert (await session.shell("echo $KEPT; ls")).stdout == "yes\nfile\n"


async def test_a_shell_that_exits_is_replaced(sandbox: LocalSandbox) -> None:
    async with sandbox.session(LIMITS) as session:
        assert (await session.shell("exit 4")).exit_status == 4
        assert (await session.shell("echo again")).stdout == "again\n"
        assert (await session.shell("echo 'unclosed")).outcome is Outcome.FAILED
        assert (await session.shell("false; true")).outcome is Outcome.PASSED


async def test_an_interpreter_reports_errors_and_goes_on(sandbox: LocalSandbox) -> None:
    async with sandbox.session(LIMITS) as session:
        assert (await session.python("def broken(:")).outcome is Outcome.FAILED
        assert (await session.python("import sys; sys.exit(5)")).exit_status == 5
        assert (await session.python("bytearray(2**33)")).outcome is Outcome.MEMORY
        assert (await session.python("input()")).outcome is Outcome.FAILED
        assert (await session.python("print('here')\n7")).stdout == "here\n7\n"


async def test_the_output_of_a_command_is_cut(sandbox: LocalSandbox) -> None:
    async with sandbox.session(LIMITS) as session:
        result = await session.shell("head -c 5000000 /dev/zero | tr '\\0' x")
        assert (result.outcome, len(result.stdout), result.is_output_cut) == (Outcome.PASSED, 1000, True)
        assert (await session.shell("echo next")).stdout == "next\n"


async def test_threads_and_exit_handlers_finish(sandbox: LocalSandbox) -> None:
    source = (
        "import atexit, threading, time\natexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('first')"
    )
    assert (await sandbox.run(Job(source=source, limits=LIMITS))).stdout == "first\nthread\nlast\n"


async def test_hashes_are_the_same_in_every_worker(sandbox: LocalSandbox) -> None:
    source = "print(hash('text'))"
    results = await asyncio.gather(*(sandbox.run(Job(source=source, limits=LIMITS)) for _ in range(6)))
    assert len({result.stdout for result in results}) == 1


async def test_an_interpreter_is_replaced_after_its_jobs() -> None:
    sandbox = await started(workers=1, jobs_per_worker=3)
    try:
        pids = [sandbox.worker_pids()]
        for _ in range(5):
            await sandbox.run(Job(source="pass", limits=LIMITS))
            pids.append(sandbox.worker_pids())
    finally:
        await sandbox.close()
    assert len({pid for numbers in pids for pid in numbers}) >= 2


async def test_files_outside_of_the_working_directory_are_refused() -> None:
    sandbox = await started(workers=1)
    try:
        for path in ("/x", "../x", "a/../../x", ""):
            with pytest.raises(InvalidInput):
                await sandbox.run(Job(source="pass", files={path: "x"}))
    finally:
        await sandbox.close()


@pytest.mark.long
async def test_nothing_is_left_on_disk() -> None:
    before = set(Path(gettempdir()).glob("astraflow-sandbox-*"))
    sandbox = await started(level="restricted")
    await sandbox.run(Job(source="import os; os.makedirs('a/b'); open('a/b/c', 'w'); os.chmod('a', 0)", limits=LIMITS))
    assert (await sandbox.run(Job(source="import os; os.chmod('.', 0)", limits=LIMITS))).outcome is Outcome.PASSED
    await sandbox.close()
    assert set(Path(gettempdir()).glob("astraflow-sandbox-*")) <= before


@pytest.mark.long
async def test_no_isolation_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(SandboxError) as raised:
        await started(level="none")
    assert raised.value.code == "sandbox.too_weak"
    sandbox = await started(level="none", allow_weak=True)
    assert sandbox.level is Level.NONE
    assert (await sandbox.run(Job(source="print(1)", limits=LIMITS))).stdout == "1\n"
    await sandbox.close()


async def test_a_weaker_level_is_used_where_the_strongest_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_: object) -> str:
        raise SandboxError("no bubblewrap", code="sandbox.no_bubblewrap")

    monkeypatch.setattr("astraflow.sandbox.isolation.find_bubblewrap", missing)
    sandbox = await started()
    try:
        assert sandbox.level is Level.RESTRICTED
        assert set(sandbox.reasons) == {Level.NAMESPACES}
    finally:
        await sandbox.close()


async def test_a_module_that_cannot_be_loaded_is_reported_at_start() -> None:
    with raises_code(SandboxError, "sandbox.too_weak", "no_such_module"):
        await started(modules=("no_such_module",))


async def test_a_closed_sandbox_runs_nothing() -> None:
    sandbox = await started(workers=1)
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxError):
        async with sandbox.session(LIMITS):
            pass


@pytest.mark.parametrize("answer", [{"broken": "no memory"}, {}, {"outcome": "unknown"}, {"outcome": "passed"}])
def test_a_broken_sandbox_is_no_result(answer: dict[str, Any]) -> None:
    with pytest.raises(SandboxError):
        result_of(answer)


async def run_while_workers_die(level: str, count: int, *, seed: int) -> int:
    """Runs jobs while workers are killed at random; returns the number of kills."""
    sandbox = await started(level=level)
    chance, kills, done = random.Random(seed), 0, 0

    async def job(number: int) -> None:
        nonlocal done
        result = await sandbox.run(Job(source=f"print({number} * 7)", limits=LIMITS))
        assert (result.outcome, result.stdout) == (Outcome.PASSED, f"{number * 7}\n")
        done += 1

    async def kill() -> None:
        nonlocal kills
        done_at_kill = -1
        while True:
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            pids = sandbox.worker_pids()
            if pids and done > done_at_kill:  # a job that loses all its workers is an error of the machine
                kills, done_at_kill = kills + 1, done
                os.kill(chance.choice(pids), signal.SIGKILL)

    killing = asyncio.create_task(kill())
    try:
        await asyncio.gather(*(job(number) for number in range(count)))
    finally:
        killing.cancel()
        await sandbox.close()
    return kills


@pytest.mark.parametrize("level", LEVELS)
async def test_no_job_is_lost_or_wrong_while_workers_are_killed(level: str) -> None:
    assert await run_while_workers_die(level, 200, seed=1) > 0


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("level", LEVELS)
async def test_none_of_5000_jobs_is_lost_or_wrong_while_workers_are_killed(level: str) -> None:
    assert await run_while_workers_die(level, 5000, seed=2) > 20


@pytest.mark.long
async def test_jobs_run_in_a_service_whose_umask_keeps_files_private() -> None:
    before = os.umask(0o077)  # as every service of AstraFlow has
    try:
        sandbox = await started(workers=1)
        try:
            assert (await sandbox.run(Job(source="print(6 * 7)"))).stdout == "42\n"
            assert sandbox.level is Level.NAMESPACES, sandbox.reasons
        finally:
            await sandbox.close()
    finally:
        os.umask(before)


@pytest.mark.long
def test_a_sandbox_starts_on_the_event_loop_of_the_services() -> None:
    async def run() -> str:
        sandbox = await started(workers=1)
        try:
            return (await sandbox.run(Job(source="print(6 * 7)", limits=LIMITS))).stdout
        finally:
            await sandbox.close()

    assert uvloop.run(run()) == "42\n"


async def test_a_session_that_is_stopped_keeps_its_files_and_nothing_else(sandbox: LocalSandbox) -> None:
    async with sandbox.session(LIMITS) as session:
        await session.shell("(while :; do touch alive; done) > /dev/null 2>&1 & x=1; touch file; exec 3> /dev/null")
        await session.python("y = 1")
        await session.stop()
        await session.shell("rm -f alive")
        result = await session.shell('ls; echo "[$x]"')
        assert result.stdout == "file\n[]\n"
        assert (await session.python("y")).outcome is Outcome.FAILED


async def test_a_command_has_an_output_limit_of_its_own(sandbox: LocalSandbox) -> None:
    command = Command(arguments=("head", "-c", "30000", "/dev/zero"))
    async with sandbox.session(LIMITS) as session:
        outputs = [await session.execute(command, output_bytes=size) for size in (None, 30_000)]
    assert [(len(output.stdout), output.is_output_cut) for output in outputs] == [(1000, True), (30_000, False)]


@pytest.mark.parametrize("may_trace", [True, False])
async def test_only_jobs_that_may_trace_trace_their_children(sandbox: LocalSandbox, may_trace: bool) -> None:
    source = (
        "import ctypes, os, time\nchild = os.fork()\nif not child: time.sleep(60)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\nprint(libc.ptrace(0x4206, child, 0, 0), ctypes.get_errno())\n"
        "os.kill(child, 9)"
    )
    limits = replace(LIMITS, may_trace=may_trace)
    async with sandbox.session(limits) as session:
        result = await session.python(source)
    assert result.stdout == ("0 0\n" if may_trace else "-1 1\n")
