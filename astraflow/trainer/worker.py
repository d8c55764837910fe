"""One thread in which a backend's blocking calls run, one at a time."""

import asyncio
import atexit
import os
import queue
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()


class Worker:
    """Runs blocking calls in its own thread, in order. A `with`; leaving it does not wait for a call that still runs.

    A long optimizer step cannot be interrupted, and threads of `asyncio.to_thread` are joined when the process ends, so
    that the step would hold up the end. This thread is left behind instead. It must not meet the interpreter's shutdown
    inside native code, where it would abort the process, so a process that ends meanwhile ends at once: with exit code
    0 when the call was given up on purpose (`abandon`), else 1.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_busy = False
        self._exit_code = 1

    def __enter__(self) -> Self:
        self._thread.start()
        atexit.register(self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.put(None)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """`function(*arguments)` in the thread. Cancelling stops waiting for it, not the call."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = function(*arguments)
            except BaseException as problem:  # whatever it is, it belongs to the caller, not to this thread
                _tell(loop, reply, problem=problem)
            else:
                _tell(loop, reply, result=result)

        self._calls.put(work)
        return await reply

    def abandon(self) -> None:
        """What still runs is given up on purpose: the end of the process does not wait for it."""
        self._exit_code = 0

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            self._is_busy = True
            work()
            self._is_busy = False
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        if self._is_busy:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._exit_code)


def _tell(
    loop: asyncio.AbstractEventLoop,
    reply: asyncio.Future[T],
    *,
    result: T | None = None,
    problem: BaseException | None = None,
) -> None:
    """Hand the outcome to the loop, unless nobody waits for it any more."""

    def settle() -> None:
        if reply.done():
            log.info("call_abandoned", problem=repr(problem) if problem else None)
        elif problem is not None:
            reply.set_exception(problem)
        else:
            reply.set_result(result)  # type: ignore[arg-type]  # None only where T is None

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop was closed meanwhile
        log.info("call_abandoned", problem=repr(problem) if problem else None)
