"""A server process ends with its whole tree, and its exit is seen at once."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from astraflow.contract.errors import Unavailable
from astraflow.raas.engines.server.process import ServerProcess
from tests.errors import raises_code
from tests.suites.engine_suite import until
from tests.suites.server_engine_suite import is_alive

VARIABLES = {"PATH": os.environ["PATH"]}


async def shell(command: str, tmp_path: Path) -> ServerProcess:
    return await ServerProcess.start(["sh", "-c", command], VARIABLES, tmp_path / "logs" / "server.log")


def tree(process: ServerProcess) -> list[psutil.Process]:
    return [psutil.Process(process.pid), *process.refresh_descendants()]


@pytest.mark.anyio
async def test_the_exit_is_noticed_while_a_child_process_holds_the_output(tmp_path: Path) -> None:
    process = await shell("sleep 60 & exit 3", tmp_path)
    began_at = time.monotonic()

    assert await process.wait() == 3
    assert time.monotonic() - began_at < 5
    await process.stop(terminate_s=0)


@pytest.mark.anyio
@pytest.mark.parametrize("terminate_s", [0.0, 0.2])
async def test_stopping_ends_children_in_other_sessions_that_ignore_signals(tmp_path: Path, terminate_s: float) -> None:
    process = await shell("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 61 & sleep 62' & sleep 63", tmp_path)
    await until(lambda: len(process.refresh_descendants()) == 4)
    before = tree(process)
    await process.stop(terminate_s=terminate_s)

    assert len(before) == 5
    assert not [one for one in before if is_alive(one)]


@pytest.mark.anyio
async def test_stopping_ends_children_that_survived_the_server(tmp_path: Path) -> None:
    process = await shell("sleep 60 & sleep 60", tmp_path)
    await until(lambda: len(process.refresh_descendants()) == 2)
    before = tree(process)
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    assert len([one for one in before if is_alive(one)]) == 2
    await process.stop()

    assert not [one for one in before if is_alive(one)]


@pytest.mark.anyio
async def test_stopping_a_stopped_process_ends_it(tmp_path: Path) -> None:
    process = await shell("sleep 60", tmp_path)
    os.kill(process.pid, signal.SIGSTOP)
    await process.stop(terminate_s=0)

    assert not psutil.pid_exists(process.pid)


@pytest.mark.anyio
async def test_the_last_lines_are_kept_and_all_are_logged(tmp_path: Path) -> None:
    process = await shell("for i in $(seq 30); do echo line $i; done; echo problem >&2", tmp_path)
    await process.wait()

    assert process.log_tail == (*(f"line {number}" for number in range(12, 31)), "problem")
    log_file = tmp_path / "logs" / "server.log"
    assert len(log_file.read_text().splitlines()) == 31
    assert log_file.stat().st_mode & 0o077 == 0  # SGLang logs its key
    await process.stop(terminate_s=0)


@pytest.mark.anyio
async def test_a_line_without_an_end_does_not_block_the_server(tmp_path: Path) -> None:
    process = await shell("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo end", tmp_path)
    await asyncio.wait_for(process.wait(), 20)

    assert process.log_tail[-1] == "end"
    await process.stop(terminate_s=0)


@pytest.mark.anyio
async def test_shared_memory_of_a_killed_server_is_removed(tmp_path: Path) -> None:
    file = Path(f"/dev/shm/test_server_{os.getpid()}")  # noqa: S108 (the test is that it is removed)
    program = (
        f"import mmap, time; f = open({str(file)!r}, 'w+b'); f.truncate(4096); "
        "m = mmap.mmap(f.fileno(), 4096); print('mapped', flush=True); time.sleep(60)"
    )
    process = await ServerProcess.start([sys.executable, "-S", "-c", program], VARIABLES, tmp_path / "server.log")
    await until(lambda: process.log_tail == ("mapped",))
    process.refresh_descendants()
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert file.exists()
    await process.stop(terminate_s=0)

    assert not file.exists()


def test_a_server_ends_when_the_node_ends(tmp_path: Path) -> None:
    program = f"""
import asyncio, os
from pathlib import Path
from astraflow.raas.engines.server.process import ServerProcess

async def main():
    process = await ServerProcess.start(["sleep", "60"], {VARIABLES!r}, Path({str(tmp_path)!r}) / "server.log")
    print(process.pid, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""
    node = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    server = int(node.stdout)
    deadline_at = time.monotonic() + 10
    while psutil.pid_exists(server) and is_alive(psutil.Process(server)) and time.monotonic() < deadline_at:
        time.sleep(0.02)

    assert not psutil.pid_exists(server) or not is_alive(psutil.Process(server))


@pytest.mark.anyio
async def test_a_missing_program_is_reported_with_the_install_command(tmp_path: Path) -> None:
    with raises_code(Unavailable, "engine.not_started", "/no/such/python", "astraflow engines install"):
        await ServerProcess.start(["/no/such/python"], VARIABLES, tmp_path / "server.log")
