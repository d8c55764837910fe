"""Interface of notice sources, and the loop that polls one."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from astraflow.contract.errors import Unavailable
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Preemption notice for the machine."""

    at: float
    """Time of the preemption in Unix seconds; may be in the past."""
    source: str
    """Origin of the notice, for messages."""


class NoticeSource(Protocol):
    """Source of preemption notices."""

    @property
    def poll_interval_s(self) -> float:
        """Seconds between two polls."""

    def poll(self, now: float) -> Notice | None:
        """Returns the notice, if there is one. Runs in a thread and may block for a second or two. now: Unix seconds.

        Raises: Unavailable when the source cannot be read now; the caller polls again later.
        """


async def wait_for_notice(source: NoticeSource, *, clock: Clock) -> Notice:
    """Polls until there is a notice. Logs an unreadable source once, and again when its error changes."""
    last_error = ""
    while True:
        try:
            notice = await asyncio.to_thread(source.poll, clock.wall())
        except Unavailable as problem:
            if str(problem) != last_error:
                log.warning("preemption_notice_unreadable", problem=str(problem))
            last_error = str(problem)
        else:
            last_error = ""
            if notice is not None:
                log.warning(
                    "preemption_notice_received", source=notice.source, left_s=round(notice.at - clock.wall(), 1)
                )
                return notice
        await clock.sleep(source.poll_interval_s)


def parse_time(text: str) -> float | None:
    """Returns the Unix seconds of an ISO 8601 time, UTC where it names no zone; None for other texts.

    >>> parse_time("2017-09-18T08:22:00Z")
    1505722920.0
    >>> parse_time("soon") is None
    True
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
