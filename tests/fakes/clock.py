"""A clock that stands until a test advances it, and can let every sleeper have its turn."""

import asyncio

from astraflow.runtime.clock import VirtualClock

SETTLE_TURNS = 20
"""Turns of the event loop after which whoever was woken has done what it does without waiting."""


class ManualClock(VirtualClock):
    """Time passes in `advance` and `pass_time` alone; sleepers wake when their time has come."""

    async def pass_time(self, duration_s: float) -> None:
        """Let time pass: each sleeper wakes at its own time and runs until it waits again."""
        await settle()
        until = self._now + duration_s
        while self._sleepers and self._sleepers[0][0] <= until:
            self._now = max(self._now, self._sleepers[0][0])
            self._wake()
            await settle()
        self._now = until
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
