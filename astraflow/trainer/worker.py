"""Thread in which a backend's blocking calls run, one at a time."""

import asyncio
import atexit
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()


class BackendThread:
    """Runs blocking calls in its own thread, in order. Use as a `with`; exit does not wait for a running call.

    A long optimizer step cannot be interrupted, and threads of `asyncio.to_thread` are joined when the process ends, so
    the step would delay the exit. A process that ends during a call exits at once instead: with exit code 0 when the
    call was given up on purpose (`abandon`), else 1. Between calls the thread is joined: one that has used torch and
    wakes during the interpreter's shutdown, even only to end, aborts the process.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.Lock()
        """Guards the two flags: no call begins once the process ends."""
        self._is_busy = False
        self._is_ending = False
        self._exit_code = 1

    def __enter__(self) -> Self:
        self._thread.start()
        atexit.register(self._end)
        return self

    def __exit__(self, *problem: object) -> None:
        self._calls.put(None)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs `function(*arguments)` in the thread. Cancelling stops the wait, not the call."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = function(*arguments)
            except BaseException as problem:  # the caller receives every exception; this thread must survive
                _resolve(loop, reply, problem=problem)
            else:
                _resolve(loop, reply, result=result)

        self._calls.put(work)
        return await reply

    def abandon(self) -> None:
        """Gives up the running call on purpose: the process exits with code 0 without waiting for it."""
        self._exit_code = 0

    def _run(self) -> None:
        while (work := self._calls.get()) is not None and self._begins():
            work()
            del work  # frees what it holds while the call still counts as running
            self._is_busy = False

    def _begins(self) -> bool:
        with self._lock:
            self._is_busy = not self._is_ending
            return self._is_busy

    def _end(self) -> None:
        """Ends the process during a call, else the thread."""
        with self._lock:
            self._is_ending = True
            is_busy = self._is_busy
        if is_busy:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._exit_code)
        self._calls.put(None)
        self._thread.join()


def _resolve(
    loop: asyncio.AbstractEventLoop,
    reply: asyncio.Future[T],
    *,
    result: T | None = None,
    problem: BaseException | None = None,
) -> None:
    """Passes the outcome to the event loop, unless the caller no longer waits for it."""

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
