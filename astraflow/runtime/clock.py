"""Time is handed in, so that tests advance it instead of sleeping."""

import asyncio
import heapq
import time
from itertools import count
from typing import Protocol


class Clock(Protocol):
    """Where a component gets its time from."""

    def now(self) -> float:
        """Seconds that never jump: for durations and deadlines."""

    def wall(self) -> float:
        """Unix seconds: for what people and other machines read."""

    async def sleep(self, duration_s: float) -> None:
        """Wait that long."""


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()

    async def sleep(self, duration_s: float) -> None:
        """`asyncio.sleep`."""
        await asyncio.sleep(duration_s)


class VirtualClock:
    """A clock that stands until somebody advances it: for simulations and tests."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> float:
        """Seconds."""
        return self._now

    def wall(self) -> float:
        """The same seconds."""
        return self._now

    async def sleep(self, duration_s: float) -> None:
        """Wait until the clock was advanced that far."""
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + duration_s, next(self._order), woken))
        await woken

    def advance(self, duration_s: float) -> None:
        """Jump ahead; sleepers whose time has come run when the event loop turns next."""
        self._now += duration_s
        while self._sleepers and self._sleepers[0][0] <= self._now:
            self._wake()

    def _wake(self) -> None:
        """The next sleeper."""
        _, _, woken = heapq.heappop(self._sleepers)
        if not woken.done():
            woken.set_result(None)
