"""Lifecycle of a process: stop signals, exit messages and exit codes."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.contract.errors import (
    AstraFlowError,
    InvalidInput,
    NotAuthenticated,
    ProtocolMismatch,
    StorageFull,
    Unavailable,
)
from astraflow.runtime.service import (
    EXIT_FAILED,
    EXIT_REFUSED,
    FOLLOW_PARENT,
    VERBOSE,
    exit_code,
    make_private_folder,
    read_error,
    run_until,
)

PROGRAM = """
import asyncio, sys
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.service import run_process

async def waits(stop):
    print("ready", flush=True)
    await stop.wait()
    print("stopped", flush=True)

async def ends(stop):
    print("done")

async def writes(stop):
    import pathlib
    folder = pathlib.Path("made")
    folder.mkdir()
    (folder / "file").touch()
    print(oct(folder.stat().st_mode & 0o777), oct((folder / "file").stat().st_mode & 0o777))

async def refuses(stop):
    raise InvalidInput("port taken")

async def refuses_together(stop):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(refuses(stop))
        tasks.create_task(inner())

async def inner():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(away())

async def away():
    raise Unavailable("unreachable")

async def breaks(stop):
    raise ZeroDivisionError("a defect")

sys.exit(run_process({main}))
"""


def start(main: str, *, follow_parent: bool = False, stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
    environment = {**os.environ, FOLLOW_PARENT: "1" if follow_parent else "0"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{main}", main)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Returns exit code and output, after at most some seconds."""
    try:
        out, err = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def is_ready(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "ready\n"


@pytest.mark.long
def test_a_service_that_returns_exits_with_0() -> None:
    assert ended(start("ends")) == (0, "done\n", "")


@pytest.mark.long
def test_an_expected_error_is_one_line_without_a_traceback() -> None:
    assert ended(start("refuses")) == (EXIT_REFUSED, "", "error: port taken [invalid_input]\n")


@pytest.mark.long
def test_errors_of_a_group_are_printed_one_per_line() -> None:
    code, _, err = ended(start("refuses_together"))
    assert code == EXIT_REFUSED
    assert sorted(err.splitlines()) == [
        "error: port taken [invalid_input]",
        "error: unreachable [unavailable]",
    ]


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (InvalidInput("x"), EXIT_REFUSED),
        (NotAuthenticated("x"), EXIT_REFUSED),
        (ProtocolMismatch("x"), EXIT_REFUSED),
        (Unavailable("x"), EXIT_FAILED),
        (StorageFull("x"), EXIT_FAILED),
    ],
)
def test_the_exit_code_distinguishes_permanent_errors(problem: AstraFlowError, code: int) -> None:
    assert exit_code(problem) == code


@pytest.mark.long
def test_verbose_prints_the_traceback_before_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERBOSE, "1")
    lines = ended(start("refuses"))[2].splitlines()
    assert lines[0].startswith("Traceback")
    assert read_error(lines[-1]) == ("port taken", "invalid_input")


@pytest.mark.parametrize(
    ("line", "message", "code"),
    [
        (
            "error: cannot open: no file; check [recipe.no_file]\n",
            "cannot open: no file; check",
            "recipe.no_file",
        ),
        ("error: cannot read [0, 1]", "cannot read [0, 1]", ""),
        ("[recipe.no_file]", "[recipe.no_file]", ""),
        ("", "", ""),
    ],
)
def test_an_error_line_is_read_back(line: str, message: str, code: str) -> None:
    assert read_error(line) == (message, code)


@pytest.mark.long
def test_following_a_parent_without_a_pipe_is_refused() -> None:
    code, _, err = ended(start("waits", follow_parent=True, stdin=subprocess.DEVNULL))
    assert code == EXIT_REFUSED
    assert read_error(err)[1] == "service.stdin_not_a_pipe"
    assert len(err.splitlines()) == 1


@pytest.mark.long
def test_a_defect_shows_its_traceback() -> None:
    code, _, err = ended(start("breaks"))
    assert code == 1
    assert "Traceback" in err
    assert "ZeroDivisionError: a defect" in err


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_service_with_exit_code_0(number: signal.Signals) -> None:
    process = start("waits")
    assert is_ready(process)
    process.send_signal(number)
    assert ended(process) == (0, "stopped\n", "")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_in_the_exit_code_of_work_that_can_complete(number: signal.Signals) -> None:
    process = start("waits, may_complete=True")
    assert is_ready(process)
    process.send_signal(number)
    assert ended(process) == (128 + number, "stopped\n", "")


@pytest.mark.long
def test_completed_work_exits_with_0() -> None:
    assert ended(start("ends, may_complete=True"))[0] == 0


@pytest.mark.long
def test_closing_the_pipe_of_the_parent_stops_the_service() -> None:
    process = start("waits", follow_parent=True)
    assert is_ready(process)
    code, out, err = ended(process)  # closes the pipe
    assert code == 0
    assert out.endswith("stopped\n")
    assert "parent_exited" in out + err


@pytest.mark.long
def test_input_from_the_parent_does_not_end_the_service() -> None:
    process = start("waits", follow_parent=True)
    assert is_ready(process)
    assert process.stdin is not None
    process.stdin.write("still here\n")
    process.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


@pytest.mark.long
def test_a_service_ignores_its_parent_by_default() -> None:
    process = start("waits", follow_parent=False)
    assert is_ready(process)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "stopped\n", "")


async def _nothing() -> None:
    pass


@pytest.mark.anyio
async def test_work_that_returns_is_not_drained() -> None:
    drained: list[bool] = []

    async def drain() -> None:
        drained.append(True)

    await run_until(asyncio.Event(), _nothing(), drain=drain)
    assert drained == []


@pytest.mark.anyio
async def test_an_error_of_the_work_is_raised() -> None:
    async def refuse() -> None:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        await run_until(asyncio.Event(), refuse(), drain=_nothing)


@pytest.mark.anyio
async def test_stopping_drains_before_it_cancels() -> None:
    stop, order = asyncio.Event(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append("cancelled")

    async def drain() -> None:
        order.append("drained")

    running = asyncio.create_task(run_until(stop, work(), drain=drain))
    await asyncio.sleep(0)
    stop.set()
    await running
    assert order == ["drained", "cancelled"]


@pytest.mark.anyio
async def test_cancelling_also_cancels_the_work() -> None:
    order: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append("cancelled")

    running = asyncio.create_task(run_until(asyncio.Event(), work(), drain=_nothing))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert order == ["cancelled"]


@pytest.mark.long
def test_files_of_a_process_are_private_to_its_user(tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM.replace("{main}", "writes")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        program, cwd=tmp_path, env=environment, umask=0o022, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["0o700", "0o600"]


def test_an_open_folder_of_an_earlier_release_becomes_private(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    folder.mkdir()
    for path, mode in ((folder, 0o755), (folder / "old", 0o644), (folder / "program", 0o755), (elsewhere, 0o644)):
        path.touch()
        path.chmod(mode)
    (folder / "link").symlink_to(elsewhere)
    before = os.umask(0o022)
    try:
        make_private_folder(folder)
        make_private_folder(tmp_path / "new" / "below")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}

    assert modes == {"state": 0o700, "old": 0o600, "program": 0o700, "link": 0o644}
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "new/below")] == [0o700, 0o700]
