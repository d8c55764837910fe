"""The life of a service process: run until told to stop, by a signal or by the end of its parent."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
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

EXIT_FAILED = 1
EXIT_REFUSED = 2
"""What was given is wrong: starting the process again will not help before somebody changes it."""

EXIT_SIGNALLED = 128
"""Plus the number of the signal that ended a process before its work was complete: it may be started again."""

_REFUSALS = (InvalidInput, NotAuthenticated, NotPermitted, ProtocolMismatch, UnknownPolicy)


def exit_code(problem: AstraFlowError) -> int:
    """The code a process ends with because of `problem`."""
    return EXIT_REFUSED if isinstance(problem, _REFUSALS) else EXIT_FAILED


def run_process(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    *,
    has_large_messages: bool = True,
    may_complete: bool = False,
) -> int:
    """Run `main(stop)` to its end and return an exit code; `stop` is set on SIGINT, SIGTERM or the parent's end.

    has_large_messages: it takes in tensors or many rollouts, and keeps memory for the next ones; else it keeps little.
    may_complete: code 0 means that its work is complete, so that a supervisor does not start it again; a signal that
    ended it before gives 128 plus its number, as in a shell.

    An `AstraFlowError` ends the process with its message on standard error and the code of `exit_code`, without a
    traceback: its message is written for the person who reads it.
    """
    code = 0
    signals: list[int] = []
    if has_large_messages:
        prepare_for_large_messages()
    else:
        keep_little()
    try:
        uvloop.run(_with_stop(main, signals))
    except* AstraFlowError as problems:
        for problem in leaves(problems):
            code = max(code, exit_code(problem))
            print(f"error: {problem}", file=sys.stderr)  # noqa: T201 (the process's last word, for a person)
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
