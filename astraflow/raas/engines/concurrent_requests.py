"""Concurrent requests of a simulated engine and their effect on each other's speed."""

import asyncio
import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from astraflow.raas.engines.timeline import Timeline, TokenSchedule
from astraflow.runtime.clock import Clock

MIN_WAIT_S = 1e-9
"""A shorter remainder after a timer is a rounding error; a clock may be unable to wait for it."""


class ConcurrentRequests:
    """Generates for all requests at the same speed, which falls with their number.

    In running time, the end of a request is known when it starts and does not depend on other requests. One
    timer is therefore enough, for the request that ends first; the other requests wait for their turn.
    """

    def __init__(self, timeline: Timeline, clock: Clock, *, half_speed_requests: float | None) -> None:
        """half_speed_requests: number of other requests that halves the speed of a request; None: no slowdown."""
        self._timeline = timeline
        self._clock = clock
        self._half_speed_requests = half_speed_requests
        self._running: dict[str, _Request] = {}
        self._heap_by_end: list[tuple[float, int, _Request]] = []
        """Heap by end time; aborted requests stay until they reach the top."""
        self._order = count()

    def __len__(self) -> int:
        """Number of running requests."""
        return len(self._running)

    async def wait_until_done(self, request_id: str, schedule: TokenSchedule) -> float:
        """Waits until the request is complete or aborted; returns its end in running time."""
        request = _Request(schedule=schedule)
        self._running[request_id] = request
        heapq.heappush(self._heap_by_end, (schedule.ends_at, next(self._order), request))
        self.reschedule()
        try:
            while request.aborted_at is None and (left_s := schedule.ends_at - self._timeline.now()) > MIN_WAIT_S:
                await self._wait(request, left_s)
        finally:
            del self._running[request_id]
            request.ended.set()
            self.reschedule()
        return schedule.ends_at if request.aborted_at is None else request.aborted_at

    async def abort(self, request_id: str) -> None:
        """Ends one request at once, if it runs."""
        if request_id in self._running:
            await self._abort([self._running[request_id]])

    async def abort_all(self) -> None:
        """Ends all requests at once."""
        await self._abort(list(self._running.values()))

    def reschedule(self) -> None:
        """Updates the speed and wakes the request that ends first, so that it sets its timer again."""
        self._timeline.set_speed(self._speed())
        first = self._first()
        if first is not None:
            first.wake()

    def _speed(self) -> float:
        other_requests = max(0, len(self._running) - 1)
        return 1 / (1 + other_requests / self._half_speed_requests) if self._half_speed_requests else 1.0

    def _first(self) -> "_Request | None":
        while self._heap_by_end and self._heap_by_end[0][2].ended.is_set():
            heapq.heappop(self._heap_by_end)
        return self._heap_by_end[0][2] if self._heap_by_end else None

    async def _wait(self, request: "_Request", left_s: float) -> None:
        has_timer = self._timeline.is_running and request is self._first()
        limit_s = self._timeline.clock_seconds_for(left_s)
        wake_up = self._clock.sleep(limit_s) if has_timer else asyncio.get_running_loop().create_future()
        waiting = request.waiting = asyncio.ensure_future(wake_up)
        try:
            await asyncio.wait({waiting})
        finally:
            waiting.cancel()

    async def _abort(self, requests: list["_Request"]) -> None:
        for request in requests:
            request.aborted_at = self._timeline.now()
            request.wake()
        for request in requests:
            await request.ended.wait()


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    schedule: TokenSchedule
    waiting: asyncio.Future[Any] | None = None
    aborted_at: float | None = None
    """Time of the abort, in running time; None while not aborted."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Makes a waiting request check its state again."""
        if self.waiting is not None:
            self.waiting.cancel()
