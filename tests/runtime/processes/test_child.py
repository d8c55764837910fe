"""A child process ends with its group when it is stopped, suspended, too slow or loud, and with its parent."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from astraflow.runtime.processes.child import (
    MAX_LINE_BYTES,
    ChildProcess,
    LoggedProcess,
    run_command,
    start_independent,
)
from astraflow.runtime.processes.supervised import PARENT, parent_variable

VARIABLES = {"PATH": os.environ["PATH"]}
ENDS_WITH_PARENT = (
    "import os, time; from astraflow.runtime.processes.supervised import end_with_parent; end_with_parent(); "
    "print('variable', os.environ.get('ASTRAFLOW_PARENT'), flush=True); time.sleep(600)"
)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_files() -> Counter[str]:
    """Returns the files of this process, with the number of descriptors of each. Pipes and sockets have numbers."""
    opened = Counter[str]()
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # that of this listing
            opened[str(descriptor.readlink())] += 1
    return opened


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 (other processes set no events)
            await asyncio.sleep(0.01)


async def logged(command: str, folder: Path, *, has_own_errors: bool = False) -> LoggedProcess:
    return await LoggedProcess.spawn_logged(
        "sh", "-c", command, environment=VARIABLES, log_file=folder / "log", has_own_errors=has_own_errors
    )


@pytest.mark.anyio
@pytest.mark.parametrize("is_suspended", [False, True])
async def test_a_process_that_handles_the_request_ends_by_itself_also_when_it_was_suspended(
    tmp_path: Path, is_suspended: bool
) -> None:
    child = await logged("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done", tmp_path)
    await until(lambda: child.log_tail == ("ready",))
    if is_suspended:
        os.kill(child.pid, signal.SIGSTOP)
    await child.stop(grace_s=20.0)
    assert child.code == 7


@pytest.mark.anyio
async def test_a_process_that_ignores_the_request_is_killed_with_its_group(tmp_path: Path) -> None:
    child = await logged("trap '' TERM; sleep 600 & echo $!; wait", tmp_path)
    await until(lambda: bool(child.log_tail))
    other = int(child.log_tail[0])
    await child.stop(grace_s=0.01)
    assert child.code == -signal.SIGKILL
    await until(lambda: not is_running(other))


@pytest.mark.anyio
async def test_the_orphans_of_a_process_that_has_ended_are_killed_and_hold_up_no_exit(tmp_path: Path) -> None:
    child = await logged("(sleep 600 & echo $!) & wait; exit 3", tmp_path)
    assert await child.wait() == 3
    orphan = int(child.log_tail[0])
    assert is_running(orphan)
    await child.stop()
    await until(lambda: not is_running(orphan))


@pytest.mark.anyio
async def test_a_cancelled_stop_kills(tmp_path: Path) -> None:
    child = await logged("trap '' TERM; echo ready; while :; do sleep 0.01; done", tmp_path)
    await until(lambda: bool(child.log_tail))
    stopping = asyncio.create_task(child.stop(grace_s=600.0))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert stopping.cancelled()
    assert child.code == -signal.SIGKILL


@pytest.mark.anyio
async def test_a_flood_of_output_is_logged_and_a_line_beyond_the_limit_is_dropped(tmp_path: Path) -> None:
    program = (
        "from sys import stdout; line = 'x' * 99 + chr(10); stdout.writelines(line for _ in range(50_000)); "
        f"stdout.write('y' * {3 * MAX_LINE_BYTES} + chr(10) + 'end' + chr(10))"
    )
    child = await LoggedProcess.spawn_logged(
        sys.executable, "-S", "-c", program, environment=VARIABLES, log_file=tmp_path / "log"
    )
    assert await child.wait() == 0
    await child.stop()
    assert child.log_tail[-2:] == ("x" * 99, "end")
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert len([line for line in lines if line == b"x" * 99]) == 50_000
    assert b"y" * 1000 not in (tmp_path / "log").read_bytes()


@pytest.mark.anyio
async def test_errors_of_a_process_reach_its_log_without_its_parent(tmp_path: Path) -> None:
    child = await logged("echo out; echo err >&2", tmp_path, has_own_errors=True)
    await child.wait()
    await child.stop()
    assert child.log_tail == ("out",)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


@pytest.mark.anyio
async def test_a_program_that_cannot_start_leaves_no_descriptor(tmp_path: Path) -> None:
    await (await logged("exit 0", tmp_path)).stop()
    before = open_files()  # those of the ended process, and of earlier tests, may be closed meanwhile
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            await LoggedProcess.spawn_logged("/no/such", environment={}, log_file=tmp_path / "log")
        with pytest.raises(FileNotFoundError):
            await ChildProcess.spawn("/no/such", environment={})
    assert open_files() <= before


@pytest.mark.anyio
async def test_a_command_has_its_outputs_and_is_killed_with_its_group_when_it_is_too_slow_or_its_caller_leaves(
    tmp_path: Path,
) -> None:
    result = await run_command("sh", "-c", "echo a; echo b >&2; exit 4", environment=VARIABLES, limit_s=30.0)
    assert (result.code, result.output, result.errors) == (4, "a\n", "b\n")
    slow = f"echo $$ > {tmp_path}/pid; sleep 600 & sleep 600"
    with pytest.raises(TimeoutError):
        await run_command("sh", "-c", slow, environment=VARIABLES, limit_s=0.3)
    with pytest.raises(TimeoutError):
        await run_command("sh", "-c", slow, environment=VARIABLES, limit_s=0.0)
    (tmp_path / "pid").unlink(missing_ok=True)
    caller = asyncio.create_task(run_command("sh", "-c", slow, environment=VARIABLES, limit_s=600.0))
    await until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    caller.cancel()
    await asyncio.wait({caller})
    group = int((tmp_path / "pid").read_text())
    await until(lambda: not any(is_running(pid) and os.getpgid(pid) == group for pid in psutil.pids()))


@pytest.mark.anyio
async def test_a_cancelled_start_leaves_no_process() -> None:
    starts = [
        asyncio.create_task(ChildProcess.spawn("sleep", "600", environment=VARIABLES, stdin=-1, stdout=-1))
        for _ in range(8)
    ]
    for start in starts:
        await asyncio.sleep(0)
        start.cancel()
    await asyncio.wait(starts)
    assert all(start.cancelled() for start in starts)
    assert not [child for child in psutil.Process().children() if child.name() == "sleep"]


def test_the_kernel_kills_a_suspended_process_when_its_parent_is_killed() -> None:
    program = (
        "import subprocess, sys, time; from astraflow.runtime.processes.supervised import parent_variable; import os\n"
        f"child = subprocess.Popen([sys.executable, '-c', {ENDS_WITH_PARENT!r}], env=os.environ | parent_variable(), "
        "stdout=subprocess.PIPE, text=True, start_new_session=True)\n"
        "print(child.stdout.readline().split()[1], child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        variable, pid = parent.stdout.readline().split()
        child = psutil.Process(int(pid))
        child.suspend()
        parent.kill()
    assert variable == "None", "programs that the child starts have another parent"
    gone, _ = psutil.wait_procs([child], timeout=30)
    assert gone == [child]


def test_a_process_whose_parent_has_ended_before_the_call_ends() -> None:
    variables = os.environ | parent_variable() | {PARENT: "1"}
    ended = subprocess.run([sys.executable, "-c", ENDS_WITH_PARENT], env=variables, stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (127, b"")


@pytest.mark.anyio
async def test_an_independent_program_has_a_session_of_its_own_and_leaves_no_zombie(tmp_path: Path) -> None:
    log_file = tmp_path / "log"
    log_file.write_text("earlier\n")
    command = "cut -d' ' -f6 /proc/$$/stat; echo $NAME >&2"
    pid = start_independent(["sh", "-c", command], environment={**VARIABLES, "NAME": "mine"}, log_file=log_file)
    await until(lambda: not psutil.pid_exists(pid))
    assert log_file.read_text() == f"earlier\n{pid}\nmine\n"
    with pytest.raises(FileNotFoundError):
        start_independent(["/no/such"], environment={}, log_file=log_file)


@pytest.mark.anyio
async def test_a_process_that_ends_while_it_is_asked_to_keeps_its_exit_code() -> None:
    codes = set()
    for _ in range(10):
        child = await ChildProcess.spawn("sh", "-c", "exit 7", environment=VARIABLES)
        while child.code is None:
            await child.ask_to_end(0.0)
        codes.add(child.code)
        await child.stop()
    assert codes <= {7, -signal.SIGTERM}
