"""Injected time source, so that tests advance time instead of sleeping."""

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol, TypeVar

Result = TypeVar("Result")

DAY_S = 86400.0


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
            self._put_ahead = [step for step in self._put_ahead if step[0] <= wall]  # the others would count twice
        self._offset_s = wall - now
        if at > wall:
            return now - self._put_back_at
        return max(0.0, wall - at - sum(length_s for before, length_s in self._put_ahead if at <= before))


class UtcDay:
    """Current day in UTC, which only moves forward: a clock that steps back over midnight renews no daily budget.

    A day ends after 24 hours of monotonic time at the latest, so that a clock that was ahead by years holds no day.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.number = self._wall_day()
        """Days since 1970."""
        self._began_at = clock.now()

    def has_changed(self) -> bool:
        """Moves to the day of the clock if the day is over, and returns whether it was."""
        today, now = self._wall_day(), self._clock.now()
        if today <= self.number and now - self._began_at < DAY_S:
            return False
        self.number, self._began_at = today, now
        return True

    def include(self, at: float) -> None:
        """Moves to the day of a record, if it is later: the clock was ahead when the record was written."""
        self.number = max(self.number, int(at // DAY_S))

    @property
    def left_s(self) -> float:
        """Time until the day ends. Seconds."""
        by_wall_s = (self.number + 1) * DAY_S - self._clock.wall()
        return max(0.0, min(by_wall_s, self._began_at + DAY_S - self._clock.now()))

    def _wall_day(self) -> int:
        return int(self._clock.wall() // DAY_S)


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
        _, _, woken = heapq.heappop(self._sleepers)
        if not woken.done():
            woken.set_result(None)


async def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Runs `work` in a thread; returns its result and its duration in seconds."""
    began = time.perf_counter()
    result = await asyncio.to_thread(work)
    return result, time.perf_counter() - began
