"""The life of a service process: run until told to stop, by a signal or by the end of its parent."""

import asyncio
import os
import signal
import stat
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from astraflow.contract.errors import (
    CODE,
    AstraFlowError,
    InvalidInput,
    NotAuthenticated,
    NotPermitted,
    ProtocolMismatch,
    UnknownPolicy,
)
from astraflow.runtime.logs import get_logger
from astraflow.runtime.memory import keep_little, prepare_for_large_messages

log = get_logger()

FOLLOW_PARENT = "ASTRAFLOW_FOLLOW_PARENT"
"""Environment variable: when `1`, standard input is a pipe held by the parent, and its end means stop."""

VERBOSE = "ASTRAFLOW_VERBOSE"
"""Environment variable: when `1`, errors are printed with their traceback."""

ERROR_PREFIX = "error: "

PRIVATE_UMASK = 0o077
"""Files and folders of a service are for its user alone; one that others may read gets its mode explicitly."""

EXIT_FAILED = 1
EXIT_REFUSED = 2
"""What was given is wrong: starting the process again will not help before somebody changes it."""

EXIT_SIGNALLED = 128
"""Plus the number of the signal that ended a process before its work was complete: it may be started again."""

_REFUSALS = (InvalidInput, NotAuthenticated, NotPermitted, ProtocolMismatch, UnknownPolicy)


def exit_code(problem: AstraFlowError) -> int:
    """The code a process ends with because of `problem`."""
    return EXIT_REFUSED if isinstance(problem, _REFUSALS) else EXIT_FAILED


def print_error(problem: AstraFlowError) -> None:
    """Write the last line of a process to standard error: `error: MESSAGE [CODE]`.

    With `ASTRAFLOW_VERBOSE=1` (`astraflow --verbose`) the traceback comes before it.
    """
    if os.environ.get(VERBOSE) == "1":
        traceback.print_exception(problem, file=sys.stderr)
    print(f"{ERROR_PREFIX}{problem} [{problem.code}]", file=sys.stderr)  # noqa: T201 (output of a command)


def read_error(line: str) -> tuple[str, str]:
    """Returns message and code of a line that `print_error` wrote; the code is empty where the line has none."""
    message, _, end = line.strip().removeprefix(ERROR_PREFIX).rpartition(" [")
    code = end.removesuffix("]")
    is_error = bool(message) and end.endswith("]") and CODE.fullmatch(code)
    return (message, code) if is_error else (line.strip().removeprefix(ERROR_PREFIX), "")


def be_private() -> None:
    """Makes all files that this process and its children create readable by their owner only."""
    os.umask(PRIVATE_UMASK)


def private_folder(directory: Path) -> Path:
    """Makes the folder of a service's state, mode 0700, and takes others' rights on what an earlier release left in it.

    Only the folder and the files directly in it are changed, and only those of this user: what is deeper cannot be
    reached by others. Raises: OSError.
    """
    be_private()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (directory, *directory.iterdir()):
        status = path.lstat()
        is_own = status.st_uid == os.geteuid() and (path is directory or stat.S_ISREG(status.st_mode))
        if is_own and status.st_mode & PRIVATE_UMASK:
            path.chmod(stat.S_IMODE(status.st_mode) & ~PRIVATE_UMASK)
    return directory


def run_process(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    *,
    has_large_messages: bool = True,
    may_complete: bool = False,
) -> int:
    """Run `main(stop)` to its end and return an exit code; `stop` is set on SIGINT, SIGTERM or the parent's end.

    Files that it creates are readable by their owner only.
    has_large_messages: it takes in tensors or many rollouts, and keeps memory for the next ones; else it keeps little.
    may_complete: code 0 means that its work is complete, so that a supervisor does not start it again; a signal that
    ended it before gives 128 plus its number, as in a shell.

    An `AstraFlowError` ends the process with `print_error` and the exit code of `exit_code`.
    """
    code = 0
    signals: list[int] = []
    be_private()
    if has_large_messages:
        prepare_for_large_messages()
    else:
        keep_little()
    try:
        uvloop.run(_with_stop(main, signals))
    except* AstraFlowError as problems:
        for problem in leaves(problems):
            code = max(code, exit_code(problem))
            print_error(problem)
    return EXIT_SIGNALLED + signals[0] if may_complete and signals and not code else code


def leaves(group: BaseExceptionGroup[AstraFlowError]) -> list[AstraFlowError]:
    """The errors in a group, at any depth."""
    found: list[AstraFlowError] = []
    for problem in group.exceptions:
        found += leaves(problem) if isinstance(problem, BaseExceptionGroup) else [problem]
    return found


async def run_until(stop: asyncio.Event, work: Awaitable[None], *, drain: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until it ends by itself or `stop` is set; then `drain` and cancel it. Errors of `work` rise."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        else:
            await drain()
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def _with_stop(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]], signals: list[int]) -> None:
    """Runs `main`; the numbers of the signals that asked it to stop are added to `signals`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        signals.append(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    if os.environ.get(FOLLOW_PARENT) == "1":
        _follow_parent(loop, stop)
    await main(stop)


def _follow_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    try:
        loop.add_reader(sys.stdin.fileno(), _on_parent_pipe, loop, stop)
    except PermissionError:
        raise InvalidInput(
            f"{FOLLOW_PARENT}=1 means that standard input is a pipe from the parent, but it is a file or a device: "
            "give it a pipe, or unset the variable"
        ) from None


def _on_parent_pipe(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        log.warning("parent_gone")
        loop.remove_reader(sys.stdin.fileno())
        stop.set()
