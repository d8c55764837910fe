"""Time is handed in, so that tests advance it instead of sleeping."""

import asyncio
import time
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
