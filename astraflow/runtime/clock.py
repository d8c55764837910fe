"""Injected time source, so that tests advance time instead of sleeping."""

import asyncio
import heapq
import time
from itertools import count
from typing import Protocol


class Clock(Protocol):
    """Time source of a component."""

    def now(self) -> float:
        """Returns monotonic seconds: for durations and deadlines."""

    def wall(self) -> float:
        """Returns Unix seconds: for timestamps that people and other machines read."""

    async def sleep(self, duration_s: float) -> None:
        """Waits for `duration_s` seconds."""


class SystemClock:
    """The system clock."""

    def now(self) -> float:
        """Returns monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Returns Unix seconds."""
        return time.time()

    async def sleep(self, duration_s: float) -> None:
        """Waits with `asyncio.sleep`."""
        await asyncio.sleep(duration_s)


class AwakeClock:
    """Clock of a service that leaves out the time in which the service did not run, so that no deadline passes then.

    The service must read the time at least once per `gap_s`: a longer gap means that its process was stopped. While a
    machine sleeps, the monotonic time of some systems stands still; then only the wall time shows it.
    """

    def __init__(self, clock: Clock, *, gap_s: float) -> None:
        self._clock = clock
        self._gap_s = gap_s
        self._read_at = clock.now()
        self._left_out_s = 0.0
        self._taken_at, self._taken_wall, self._taken_left_out_s = self._read_at, clock.wall(), 0.0

    def now(self) -> float:
        """Returns monotonic seconds, less those in which the service did not run."""
        now = self._clock.now()
        if now - self._read_at > self._gap_s:
            self._left_out_s += now - self._read_at
        self._read_at = now
        return now - self._left_out_s

    def wall(self) -> float:
        """Returns Unix seconds."""
        return self._clock.wall()

    async def sleep(self, duration_s: float) -> None:
        """Waits for `duration_s` seconds."""
        await self._clock.sleep(duration_s)

    def take_suspension_s(self) -> float:
        """Returns for how long the service did not run since the last call, by the clock that shows more of it; 0 for
        less than `gap_s`."""
        now, wall = self.now(), self.wall()
        beside_s = (wall - self._taken_wall) - (now - self._taken_at)
        suspended_s = max(self._left_out_s - self._taken_left_out_s, beside_s)
        self._taken_at, self._taken_wall, self._taken_left_out_s = now, wall, self._left_out_s
        return suspended_s if suspended_s > self._gap_s else 0.0


class StoredTimes:
    """Ages of stored Unix times. A step of the wall clock ends no timeout early, and extends none beyond the step."""

    STEP_S = 5.0
    """Difference between wall time and monotonic time, since the last reading, that is a step. Seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = clock.wall() - clock.now()
        self._put_back_at = clock.now()
        """Monotonic seconds of the latest step back, at first of the start."""
        self._put_ahead: list[tuple[float, float]] = []
        """Steps ahead: wall time before the step, and its length in seconds."""

    def age_s(self, at: float) -> float:
        """Returns the seconds since a stored Unix time; for one that is in the future now, those since a step back."""
        now, wall = self._clock.now(), self._clock.wall()
        step_s = wall - now - self._offset_s
        if step_s > self.STEP_S:
            self._put_ahead.append((wall - step_s, step_s))
        elif step_s < -self.STEP_S:
            self._put_back_at = now
        self._offset_s = wall - now
        age_s = wall - at - sum(length_s for before, length_s in self._put_ahead if at <= before)
        return age_s if age_s >= 0 else now - self._put_back_at


class VirtualClock:
    """Clock that moves only by `advance`: for simulations and tests."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> float:
        """Returns the current seconds."""
        return self._now

    def wall(self) -> float:
        """Returns the same seconds as `now`."""
        return self._now

    async def sleep(self, duration_s: float) -> None:
        """Waits until the clock has advanced by `duration_s`."""
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + duration_s, next(self._order), woken))
        await woken

    def advance(self, duration_s: float) -> None:
        """Advances the clock; sleepers that are due run at the next turn of the event loop."""
        self._now += duration_s
        while self._sleepers and self._sleepers[0][0] <= self._now:
            self._wake()

    def _wake(self) -> None:
        """Wakes the next sleeper."""
        _, _, woken = heapq.heappop(self._sleepers)
        if not woken.done():
            woken.set_result(None)
