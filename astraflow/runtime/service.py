"""Lifecycle of a service process: runs until a signal or the end of its parent."""

import asyncio
import ctypes
import gc
import os
import signal
import stat
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
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
from astraflow.runtime.folders.compile_caches import use_private_caches
from astraflow.runtime.logs import get_logger

log = get_logger()

FOLLOW_PARENT = "ASTRAFLOW_FOLLOW_PARENT"
"""Environment variable: when `1`, standard input is a pipe held by the parent, and end-of-file stops the process."""

VERBOSE = "ASTRAFLOW_VERBOSE"
"""Environment variable: when `1`, errors are printed with their traceback."""

ERROR_PREFIX = "error: "

PRIVATE_UMASK = 0o077
"""Umask of services: files are private to the user; files for others get their mode explicitly."""

EXIT_FAILED = 1
EXIT_REFUSED = 2
"""Exit code for invalid input: a restart does not help until a person changes it."""

EXIT_SIGNALLED = 128
"""Exit code, plus the signal number, of a process that a signal ended before its work was complete: it may be
restarted."""

_REFUSALS = (InvalidInput, NotAuthenticated, NotPermitted, ProtocolMismatch, UnknownPolicy)


def exit_code(problem: AstraFlowError) -> int:
    """Returns the exit code of a process for `problem`."""
    return EXIT_REFUSED if isinstance(problem, _REFUSALS) else EXIT_FAILED


def print_error(problem: AstraFlowError) -> None:
    """Writes the last line of a process to standard error: `error: MESSAGE [CODE]`.

    With `ASTRAFLOW_VERBOSE=1` (`astraflow --verbose`) it prints the traceback first.
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


def make_files_private() -> None:
    """Makes all files that this process and its children create readable by their owner only."""
    os.umask(PRIVATE_UMASK)


def make_private_folder(directory: Path) -> Path:
    """Creates the folder of a service's state, mode 0700, and removes other users' rights on files of an earlier
    release.

    Only the folder and the files directly in it that this user owns are changed: others cannot reach deeper ones.
    Raises: OSError.
    """
    make_files_private()
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
    """Runs `main(stop)` to its end and returns an exit code; `stop` is set on SIGINT, SIGTERM or the parent's end.

    Files that it creates are readable by their owner only, and code that libraries compile is kept where no other user
    can write (`use_private_caches`). has_large_messages: the process receives tensors or many
    rollouts and retains memory for reuse. may_complete: exit code 0 means complete, so
    that a supervisor does not restart it; a signal before that gives 128 plus its number, as in a shell.

    An `AstraFlowError` ends the process with `print_error` and the exit code of `exit_code`.
    """
    code = 0
    signals: list[int] = []
    make_files_private()
    use_private_caches()
    if has_large_messages:
        prepare_for_large_messages()
    else:
        _set_allocator({_M_ARENA_MAX: 1})  # each thread has a heap of its own by default: 8 MB of the page
    try:
        uvloop.run(_with_stop(main, signals))
    except* AstraFlowError as problems:
        for problem in flattened_errors(problems):
            code = max(code, exit_code(problem))
            print_error(problem)
    return EXIT_SIGNALLED + signals[0] if may_complete and signals and not code else code


def flattened_errors(group: BaseExceptionGroup[AstraFlowError]) -> list[AstraFlowError]:
    """Returns the errors in a group, at any depth."""
    errors: list[AstraFlowError] = []
    for problem in group.exceptions:
        errors += flattened_errors(problem) if isinstance(problem, BaseExceptionGroup) else [problem]
    return errors


async def run_until(
    stop: asyncio.Event, work: Awaitable[None], *, drain: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Runs `work` until it ends or `stop` is set; then calls `drain` and cancels it. Exceptions of `work` propagate.

    drain: None for work that can end at any time.
    """
    work_task = asyncio.ensure_future(work)
    stop_task = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        if work_task.done():
            await work_task
        elif drain is not None:
            await drain()
    finally:
        stop_task.cancel()
        work_task.cancel()
        await asyncio.gather(work_task, stop_task, return_exceptions=True)


async def _with_stop(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]], signals: list[int]) -> None:
    """Runs `main`; appends the numbers of stop signals to `signals`."""
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
            f"cannot follow the parent process: {FOLLOW_PARENT}=1, but standard input is not a pipe; "
            "give it a pipe, or unset the variable",
            code="service.stdin_not_a_pipe",
        ) from None


def _on_parent_pipe(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        log.warning("parent_exited")
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_FROM_HEAP = 32 * 2**20
"""Largest value that glibc accepts: larger blocks have separate mappings."""

_RETAINED_FREE_BYTES = 256 * 2**20
"""Freed memory at the end of the heap that the process retains."""

_YOUNG_OBJECTS = 50_000
"""Allocations minus frees before the youngest generation is collected; Python's default is 700."""


def prepare_for_large_messages() -> None:
    """Reuses blocks of some megabytes instead of mapping, touching and unmapping them each time.

    Messages of a MiB were received at 0.85 GB/s with the C library's defaults and at 1.7 GB/s with these settings (two
    cores, loopback, a stream of gRPC). The cost is up to 256 MiB that a process retains after its peak. Services hold
    many small objects without cycles, so the collector also runs less often. Without glibc only the latter applies.
    """
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
    _set_allocator({_M_MMAP_THRESHOLD: _LARGEST_FROM_HEAP, _M_TRIM_THRESHOLD: _RETAINED_FREE_BYTES})


def _set_allocator(parameters: Mapping[int, int]) -> None:
    """Sets parameters of glibc's allocator; without glibc it does nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in parameters.items():
        mallopt(parameter, value)
