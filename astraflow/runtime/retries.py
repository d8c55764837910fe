"""Which failures may pass, and asyncio helpers: retry with backoff, pauses after failures, periodic work."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from astraflow.contract.errors import DeadlineExceeded, RateLimited, Unavailable
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()

TRANSIENT = (Unavailable, DeadlineExceeded, RateLimited)
"""Errors that a retry may resolve."""

_SQLITE_REMEDIES = {
    "BUSY": "end the other program that holds its lock, such as a backup",
    "LOCKED": "end the other program that holds its lock, such as a backup",
    "PROTOCOL": "end the other program that holds its lock, such as a backup",
    "FULL": "free disk space",
    "IOERR": "check the disk and the limits of this user for files",
    "READONLY": "make its folder and file system writable",
    "PERM": "make its folder and file system writable",
    "CANTOPEN": "check its folder, its permissions and the limit of open files",
}
"""Remedies by the names of SQLite's errors that pass without a change of the program or of the data."""

_WRONG_PLACES = ("READONLY", "PERM", "CANTOPEN")

_waits: dict[object, tuple[float, str]] = {}
"""Calls of `retry` that wait now: since when, by their clock, and the latest problem."""


def sqlite_remedy(problem: BaseException | None, *, is_start: bool = False) -> str | None:
    """Returns what to do when SQLite cannot use its file now; None for any other error, such as damaged data.

    is_start: the file is opened; if it cannot be written, its place is wrong, and waiting does not help.
    """
    kind = getattr(problem, "sqlite_errorname", "").removeprefix("SQLITE_").partition("_")[0]
    return None if is_start and kind in _WRONG_PLACES else _SQLITE_REMEDIES.get(kind)


def current_waits(*, now: float, min_s: float) -> list[str]:
    """Returns the latest problem of each call of `retry` in this process that has failed for `min_s` seconds."""
    return [problem for since, problem in _waits.values() if now - since >= min_s]


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
    """Calls until success, with doubling delays and jitter; other errors propagate at once.

    Logs the first failure, then one whenever the time waited has doubled, so that a long outage does not fill the disk.
    give_up_after_s: seconds after which the last error propagates; None retries until cancelled.
    """
    clock = clock or SystemClock()
    began = clock.now()
    delay_s = first_delay_s
    log_after_s = 0.0
    key = object()
    try:
        while True:
            try:
                return await call()
            except retry_on as problem:
                waited_s = clock.now() - began
                if give_up_after_s is not None and waited_s + delay_s > give_up_after_s:
                    raise
                _waits[key] = (_waits.get(key, (clock.now(), ""))[0], str(problem))
                if waited_s >= log_after_s:
                    log_after_s = max(1.0, 2 * waited_s)
                    log.warning("retrying", what=what, problem=str(problem), waited_s=round(waited_s, 1))
            await clock.sleep(delay_s * random.uniform(0.7, 1.3))
            delay_s = min(delay_s * 2, max_delay_s)
    finally:
        _waits.pop(key, None)


class Backoff:
    """Pauses after failures in a loop, each twice as long as the previous one, until a reset."""

    def __init__(self, clock: Clock, *, first_s: float, max_s: float) -> None:
        self._clock = clock
        self._first_s = self._next_s = first_s
        self._max_s = max_s

    @property
    def next_s(self) -> float:
        """Length of the next pause in seconds."""
        return self._next_s

    def reset(self) -> None:
        """Resets the pause after a success."""
        self._next_s = self._first_s

    async def wait(self) -> None:
        """Waits for the next pause."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._max_s)
        await self._clock.sleep(pause_s)


async def periodic(work: Callable[[], Awaitable[None]], *, every_s: float, clock: Clock | None = None) -> None:
    """Runs `work` every `every_s` seconds until cancelled, without drift; late runs do not accumulate."""
    clock = clock or SystemClock()
    due = clock.now()
    while True:
        await work()
        due = max(due + every_s, clock.now())
        await clock.sleep(due - clock.now())
