"""Retries of calls: a call that a client sends again gets the reply of the first one, which runs only once."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Call(Generic[_T]):
    task: "asyncio.Task[_T]"
    waiting: int = 0
    """Clients that wait for the reply."""
    delivered: int = 0
    """Clients that got it."""


class JoinedCalls(Generic[_T]):
    """Calls of one session by their retry key.

    A retry of a call in progress waits for the same reply; a retry of an answered call gets the stored reply. A call
    whose clients have all gone is cancelled, so that a retry runs again. A retry after an error runs again too.
    """

    def __init__(self, discard: Callable[[_T], None]) -> None:
        """discard: takes back a reply that was complete when its last client had gone without it."""
        self.replayed = 0
        """Retries that got the reply of an earlier call. Count."""
        self._discard = discard
        self._calls: dict[str, _Call[_T]] = {}

    async def run(self, start: Callable[[], Coroutine[Any, Any, _T]], *, key: str, is_retry: bool) -> _T:
        """Returns the reply of an earlier call with this key, or of `start`. key: empty: never joined.

        Raises: whatever the call raises.
        """
        call = self._calls.get(key) if key and is_retry else None
        if call is None:
            call = _Call(asyncio.ensure_future(start()))
            if key:
                self._calls[key] = call
        else:
            self.replayed += 1
        call.waiting += 1
        try:
            reply = await asyncio.shield(call.task)
            call.delivered += 1
        except BaseException:
            if call.waiting == 1 and not call.delivered:
                await self._abandon(key, call)
            raise
        else:
            return reply
        finally:
            call.waiting -= 1

    async def _abandon(self, key: str, call: _Call[_T]) -> None:
        """Cancels a call that no client waits for, or takes back its reply."""
        if self._calls.get(key) is call:
            del self._calls[key]
        if not call.task.done():
            call.task.cancel()
            await asyncio.gather(call.task, return_exceptions=True)
        if not call.task.cancelled() and call.task.exception() is None:
            self._discard(call.task.result())
