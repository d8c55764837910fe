"""Event loop of asynchronous tests."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

_Ts = TypeVarTuple("_Ts")


class EventLoop(asyncio.SelectorEventLoop):
    """Event loop of a test that ignores what gRPC completes after its end.

    gRPC has one completion queue for all loops of a process, and a call that a test leaves open ends later: the loop
    that then reads the queue, of another test, passes the event on to the closed loop and would fail with its error.
    """

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedules a callback."""
        if self.is_closed() and getattr(callback, "__name__", "") == "_handle_callback_wrapper":
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)
