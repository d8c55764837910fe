"""A clock that stands until a test advances it."""

import asyncio
import heapq
from itertools import count

SETTLE_TURNS = 20
"""Turns of the event loop after which whoever was woken has done what it does without waiting."""


class ManualClock:
    """Time passes in `advance` and `pass_time` alone; sleepers wake when their time has come."""

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
        """Wait until the test has advanced that far."""
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
            _wake(heapq.heappop(self._sleepers)[2])

    async def pass_time(self, duration_s: float) -> None:
        """Let time pass: each sleeper wakes at its own time and runs until it waits again."""
        await settle()
        until = self._now + duration_s
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, woken = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            _wake(woken)
            await settle()
        self._now = until
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
