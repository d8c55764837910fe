"""The life of a service process: run until told to stop, by a signal or by the end of its parent."""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from astraflow.contract.errors import (
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

PRIVATE_UMASK = 0o077
"""Files and folders of a service are for its user alone; one that others may read gets its mode explicitly."""

EXIT_FAILED = 1
EXIT_REFUSED = 2
"""What was given is wrong: starting the process again will not help before somebody changes it."""

_REFUSALS = (InvalidInput, NotAuthenticated, NotPermitted, ProtocolMismatch, UnknownPolicy)


def exit_code(problem: AstraFlowError) -> int:
    """The code a process ends with because of `problem`."""
    return EXIT_REFUSED if isinstance(problem, _REFUSALS) else EXIT_FAILED


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


def run_process(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *, has_large_messages: bool = True) -> int:
    """Run `main(stop)` to its end and return an exit code; `stop` is set on SIGINT, SIGTERM or the parent's end.

    What it creates is readable by its owner only. has_large_messages: it takes in tensors or many rollouts, and keeps
    memory for the next ones; else it keeps little.

    An `AstraFlowError` ends the process with its message on standard error and the code of `exit_code`, without a
    traceback: its message is written for the person who reads it.
    """
    code = 0
    be_private()
    if has_large_messages:
        prepare_for_large_messages()
    else:
        keep_little()
    try:
        uvloop.run(_with_stop(main))
    except* AstraFlowError as problems:
        for problem in leaves(problems):
            code = max(code, exit_code(problem))
            print(f"error: {problem}", file=sys.stderr)  # noqa: T201 (the process's last word, for a person)
    return code


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


async def _with_stop(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
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
