"""A server process ends with its whole tree, and its exit is seen at once."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from astraflow.contract.errors import Unavailable
from astraflow.raas.engines.server.process import ServerProcess
from tests.errors import raises_code
from tests.suites.server_engine_suite import is_alive
from tests.suites.serving import GIVE_UP_S, until

VARIABLES = {"PATH": os.environ["PATH"]}


async def shell(command: str, tmp_path: Path) -> ServerProcess:
    return await ServerProcess.start(["sh", "-c", command], VARIABLES, tmp_path / "logs" / "server.log")


def tree(process: ServerProcess) -> list[psutil.Process]:
    """Returns the supervisor, the server and its child processes."""
    return [psutil.Process(process.pid), *process.refresh_descendants()]


async def server_of(process: ServerProcess) -> psutil.Process:
    """Returns the server, which the supervisor starts."""
    await until(lambda: bool(process.refresh_descendants()))
    return process.refresh_descendants()[0]


@pytest.mark.anyio
async def test_the_exit_is_noticed_while_a_child_process_holds_the_output(tmp_path: Path) -> None:
    process = await shell("sleep 60 & exit 3", tmp_path)
    began_at = time.monotonic()

    assert await process.wait() == 3
    assert time.monotonic() - began_at < 5
    await process.stop()


@pytest.mark.anyio
async def test_stopping_ends_children_in_other_sessions_that_ignore_signals(tmp_path: Path) -> None:
    process = await shell("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 61 & sleep 62' & sleep 63", tmp_path)
    await until(lambda: len(process.refresh_descendants()) == 5)
    before = tree(process)
    await process.stop()

    assert not [descendant for descendant in before if is_alive(descendant)]


@pytest.mark.anyio
async def test_children_do_not_outlive_their_server(tmp_path: Path) -> None:
    process = await shell("setsid sh -c 'sleep 60 & sleep 60' & sleep 60", tmp_path)
    await until(lambda: len(process.refresh_descendants()) == 5)
    before = tree(process)
    (await server_of(process)).kill()

    assert await process.wait() == -signal.SIGKILL
    assert not [descendant for descendant in before if is_alive(descendant)]
    await process.stop()


@pytest.mark.anyio
async def test_stopping_ends_what_outlived_a_killed_supervisor(tmp_path: Path) -> None:
    process = await shell("setsid sleep 60 & sleep 60", tmp_path)
    await until(lambda: len(process.refresh_descendants()) == 3)
    before = tree(process)
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    await until(lambda: not is_alive(before[1]))
    await process.stop()

    assert not [descendant for descendant in before if is_alive(descendant)]


@pytest.mark.anyio
@pytest.mark.parametrize("stopped", ["supervisor", "server"])
async def test_stopping_a_stopped_process_ends_it(tmp_path: Path, stopped: str) -> None:
    process = await shell("exec sleep 60", tmp_path)
    server = await server_of(process)
    os.kill(process.pid if stopped == "supervisor" else server.pid, signal.SIGSTOP)
    await process.stop()

    assert not psutil.pid_exists(process.pid)
    assert not psutil.pid_exists(server.pid)


@pytest.mark.anyio
async def test_the_last_lines_are_kept_and_all_are_logged(tmp_path: Path) -> None:
    process = await shell("for i in $(seq 30); do echo line $i; done; echo problem >&2", tmp_path)
    await process.wait()

    assert process.log_tail == (*(f"line {number}" for number in range(12, 31)), "problem")
    log_file = tmp_path / "logs" / "server.log"
    assert len(log_file.read_text().splitlines()) == 31
    assert log_file.stat().st_mode & 0o077 == 0  # SGLang logs its key
    await process.stop()


@pytest.mark.anyio
async def test_a_line_without_an_end_does_not_block_the_server(tmp_path: Path) -> None:
    process = await shell("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo end", tmp_path)
    await asyncio.wait_for(process.wait(), 20)

    assert process.log_tail[-1] == "end"
    await process.stop()


@pytest.fixture
async def mapping(tmp_path: Path) -> AsyncIterator[tuple[ServerProcess, Path]]:
    """A server that maps a file in shared memory, and the file."""
    file = Path(f"/dev/shm/test_server_{os.getpid()}")  # noqa: S108 (the test is that it is removed)
    program = (
        f"import mmap, time; f = open({str(file)!r}, 'w+b'); f.truncate(4096); "
        "m = mmap.mmap(f.fileno(), 4096); print('mapped', flush=True); time.sleep(60)"
    )
    process = await ServerProcess.start([sys.executable, "-S", "-c", program], VARIABLES, tmp_path / "server.log")
    await until(lambda: process.log_tail == ("mapped",))
    yield process, file
    await process.stop()


@pytest.mark.anyio
async def test_shared_memory_of_a_killed_server_is_removed(mapping: tuple[ServerProcess, Path]) -> None:
    process, file = mapping
    (await server_of(process)).kill()
    await process.wait()
    assert file.exists()
    await process.stop()

    assert not file.exists()


@pytest.mark.anyio
async def test_shared_memory_is_removed_when_the_node_is_killed_while_it_ends_its_server(
    mapping: tuple[ServerProcess, Path],
) -> None:
    process, file = mapping
    psutil.Process(process.pid).terminate()  # the first step of `stop`
    await process.wait()

    assert not file.exists()


@pytest.mark.anyio
async def test_a_semaphore_of_a_killed_server_is_removed(tmp_path: Path) -> None:
    program = (
        "import time, multiprocessing; semaphore = multiprocessing.get_context('spawn').Semaphore(); "
        "print(semaphore._semlock.name, flush=True); time.sleep(60)"
    )
    process = await ServerProcess.start([sys.executable, "-S", "-c", program], VARIABLES, tmp_path / "server.log")
    await until(lambda: bool(process.log_tail))
    file = Path(f"/dev/shm/sem.{process.log_tail[0].removeprefix('/')}")  # noqa: S108 (the test is that it is removed)
    assert file.exists()
    await process.stop()

    assert not file.exists()


@pytest.mark.long
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_when_the_node_ends(tmp_path: Path, sent: signal.Signals) -> None:
    """A process that the node has forked, and that outlives it, does not matter."""
    program = f"""
import asyncio, json, os, time
from pathlib import Path
from astraflow.raas.engines.server.process import ServerProcess

async def main():
    command = "setsid sh -c 'sleep 60 & sleep 60' & sleep 60"
    variables = {VARIABLES | {"TMPDIR": str(tmp_path)}!r}
    process = await ServerProcess.start(["sh", "-c", command], variables, Path({str(tmp_path)!r}) / "server.log")
    while len(process.refresh_descendants()) < 5:
        await asyncio.sleep(0.01)
    forked = os.fork()
    if not forked:
        time.sleep(60)
    pids = [process.pid, *(child.pid for child in process.refresh_descendants())]
    print(json.dumps([forked, *pids]), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        forked, *processes = (psutil.Process(pid) for pid in json.loads(node.stdout.readline()))
        node.send_signal(sent)
        node.wait()
    try:
        gone, alive = psutil.wait_procs(processes, timeout=GIVE_UP_S)
        assert len(gone) == 6
        assert not alive
        assert is_alive(forked)
        assert not list(tmp_path.glob("engine-*"))
    finally:
        forked.kill()


@pytest.mark.anyio
@pytest.mark.parametrize("is_supervisor_killed", [False, True])
async def test_files_in_the_temporary_folder_end_with_the_server(tmp_path: Path, is_supervisor_killed: bool) -> None:
    variables = VARIABLES | {"TMPDIR": str(tmp_path)}
    command = 'touch "$TMPDIR/socket"; echo "$TMPDIR"; exec sleep 60'
    process = await ServerProcess.start(["sh", "-c", command], variables, tmp_path / "server.log")
    await until(lambda: bool(process.log_tail))
    folder = Path(process.log_tail[0])
    assert folder.parent == tmp_path
    assert (folder / "socket").exists()
    if is_supervisor_killed:
        os.kill(process.pid, signal.SIGKILL)
    await process.stop()

    assert not folder.exists()


@pytest.mark.anyio
async def test_a_missing_program_is_reported_with_the_install_command(tmp_path: Path) -> None:
    with raises_code(Unavailable, "engine.not_started", "/no/such/python", "astraflow engines install"):
        await ServerProcess.start(["/no/such/python"], VARIABLES, tmp_path / "server.log")


@pytest.mark.anyio
async def test_a_secret_that_a_server_logs_is_neither_kept_nor_shown(tmp_path: Path) -> None:
    log_file = tmp_path / "server.log"
    process = await ServerProcess.start(
        ["sh", "-c", "echo api_key=canary-key; echo ready"], VARIABLES, log_file, secret="canary-key"
    )
    await process.wait()
    await process.stop()

    assert process.log_tail == ("api_key=(hidden)", "ready")
    assert log_file.read_text() == "api_key=(hidden)\nready\n"
