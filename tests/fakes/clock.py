"""Clocks that a test advances: one that stands still otherwise, and one that runs."""

import asyncio
from contextlib import suppress

from astraflow.runtime.clock import SystemClock, VirtualClock

SETTLE_TURNS = 20
"""Turns of the event loop after which woken tasks have run until they wait again."""


class ManualClock(VirtualClock):
    """Clock that advances only in `advance` and `pass_time`; sleepers wake when their time has come."""

    async def pass_time(self, duration_s: float) -> None:
        """Advances the time: each sleeper wakes at its own time and runs until it waits again."""
        await settle()
        until = self._now + duration_s
        while self._sleepers and self._sleepers[0][0] <= until:
            self._now = max(self._now, self._sleepers[0][0])
            self._wake()
            await settle()
        self._now = until
        await settle()


class JumpingClock(SystemClock):
    """System clock that a test can put ahead; sleepers whose time has come wake."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._jumped = asyncio.Event()

    def now(self) -> float:
        """Returns monotonic seconds plus the jumps."""
        return super().now() + self._ahead_s

    async def sleep(self, duration_s: float) -> None:
        """Waits for `duration_s` seconds, less the jumps meanwhile."""
        ends_at = self.now() + duration_s
        while (left_s := ends_at - self.now()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._jumped.wait(), left_s)

    def jump(self, duration_s: float) -> None:
        """Puts the clock ahead."""
        self._ahead_s += duration_s
        self._jumped.set()
        self._jumped = asyncio.Event()


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
