"""Small asyncio helpers: retry with backoff, rest after failures, work at a period."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from astraflow.contract.errors import DeadlineExceeded, RateLimited, Unavailable
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()

TRANSIENT = (Unavailable, DeadlineExceeded, RateLimited)
"""Errors that another try may not meet."""


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    what: str,
    give_up_after_s: float | None = None,
    first_delay_s: float = 0.1,
    max_delay_s: float = 2.0,
    retry_on: tuple[type[Exception], ...] = TRANSIENT,
    clock: Clock | None = None,
) -> T:
    """Call until it succeeds, with doubling delays and jitter; other errors rise at once.

    The first failure is logged, then one whenever the time waited has doubled, so that a long outage fills no disk.
    give_up_after_s: seconds after which the last error rises; None tries for ever (until cancelled).
    """
    clock = clock or SystemClock()
    began = clock.now()
    delay_s = first_delay_s
    log_after_s = 0.0
    while True:
        try:
            return await call()
        except retry_on as problem:
            waited_s = clock.now() - began
            if give_up_after_s is not None and waited_s + delay_s > give_up_after_s:
                raise
            if waited_s >= log_after_s:
                log_after_s = max(1.0, 2 * waited_s)
                log.warning("retrying", what=what, problem=str(problem), waited_s=round(waited_s, 1))
        await clock.sleep(delay_s * random.uniform(0.7, 1.3))
        delay_s = min(delay_s * 2, max_delay_s)


class Rests:
    """Pauses after failures in a loop, each twice as long as the one before, until something goes well."""

    def __init__(self, clock: Clock, *, first_s: float, most_s: float) -> None:
        self._clock = clock
        self._first_s = self._next_s = first_s
        self._most_s = most_s

    @property
    def next_s(self) -> float:
        """How long the next one is."""
        return self._next_s

    def are_over(self) -> None:
        """Something went well."""
        self._next_s = self._first_s

    async def take(self) -> None:
        """Wait."""
        rest_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        await self._clock.sleep(rest_s)


async def periodic(work: Callable[[], Awaitable[None]], *, every_s: float, clock: Clock | None = None) -> None:
    """Run `work` every `every_s` seconds until cancelled, without drift; late runs do not pile up."""
    clock = clock or SystemClock()
    due = clock.now()
    while True:
        await work()
        due = max(due + every_s, clock.now())
        await clock.sleep(due - clock.now())
