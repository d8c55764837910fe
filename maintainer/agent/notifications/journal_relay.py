"""Relays journal entries for people (escalations, alarms) to the notifier, regardless of their author.

Each entry is sent once, also across restarts: the read position is stored together with the queued notices.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render_summary
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.agent.notifications.notice_queue import Notice
from maintainer.agent.notifications.webhook import Notifier

log = get_logger()

FIRST_PAGE, PAGE = 20, 200
"""Entries per request: usually only a few are new."""
MAX_AGE_S = 86400.0
"""Older entries are not sent when they are first read; the page shows them."""
REPEAT_WINDOW_S = 3600.0
"""An agent's repeated escalation within this time is not sent again; the journal has every one."""
MAX_REMEMBERED = 100
ALARM_TITLES = {
    RecordKind.ALARM: "the fleet service has a problem",
    RecordKind.ALARM_OVER: "a problem of the fleet service is resolved",
}
"""Titles of notices by journal kind."""
_FIGURE = re.compile(r"\d+(?:\.\d+)?")


class JournalReader(Protocol):
    """Interface of the fleet service that is read; implemented by the client of the fleet plane."""

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """Returns the journal, newest first."""


class JournalRelay:
    """Relay of one process."""

    def __init__(self, journal: JournalReader, notifier: Notifier, clock: Clock) -> None:
        self._journal = journal
        self._notifier = notifier
        self._clock = clock
        self._is_unreachable = False

    async def forward_new_entries(self) -> None:
        """Reads the journal once and queues new notices. A failed read is repeated at the next call."""
        if not self._notifier.is_enabled:
            return
        try:
            unread, newest = await self._unread()
        except AstraFlowError as problem:
            if not self._is_unreachable:
                log.warning("journal_read_failed", problem=str(problem))
            self._is_unreachable = True
            return
        self._is_unreachable = False
        queue = self._notifier.queue
        if newest == queue.cursor:
            return
        since = self._clock.wall() - MAX_AGE_S
        for_people = [entry for entry in unread if entry.kind in (RecordKind.ESCALATE, *ALARM_TITLES)]
        if queue.cursor is not None:
            queue.dropped += sum(entry.at < since for entry in for_people)
        notices = [notice(entry) for entry in for_people if entry.at >= since and not self._is_repeat(entry)]
        await self._notifier.enqueue_journal(notices, cursor=newest)

    async def _unread(self) -> tuple[Sequence[Decision], int]:
        """Entries after the cursor, oldest first, and the newest ordinal."""
        page = await self._journal.decisions(limit=FIRST_PAGE)
        newest, cursor = (page[0].ordinal if page else 0), self._notifier.queue.cursor
        if cursor is not None and newest < cursor:
            cursor = None  # the journal was replaced
        since = self._clock.wall() - MAX_AGE_S
        entries = list(page)
        while page and not _ends_reading(page[-1], cursor, since):
            page = await self._journal.decisions(before=page[-1].ordinal, limit=PAGE)
            entries += page
        return [entry for entry in reversed(entries) if cursor is None or entry.ordinal > cursor], newest

    def _is_repeat(self, entry: Decision) -> bool:
        """True if its author escalated the same text recently; differing figures do not make it a new one."""
        if entry.kind is not RecordKind.ESCALATE:
            return False
        sent_at = self._notifier.queue.last_sent_at
        key = f"{entry.actor}: {_FIGURE.sub('#', entry.reason)}"
        if entry.at - sent_at.get(key, float("-inf")) < REPEAT_WINDOW_S:
            return True
        sent_at.pop(key, None)  # moves the key to the end: the dict is ordered by time
        sent_at[key] = entry.at
        for old in list(sent_at)[:-MAX_REMEMBERED]:
            del sent_at[old]
        return False


def notice(entry: Decision) -> Notice:
    """Notice for a journal entry."""
    title = ALARM_TITLES.get(entry.kind, f"{entry.actor} escalates")
    facts: dict[str, str | float] = {"decision": entry.ordinal, "by": entry.actor}
    return Notice(
        kind="escalation" if entry.kind is RecordKind.ESCALATE else "alarm",
        severity=entry.severity.value,
        title=title,
        text=render_summary(entry),
        at=entry.at,
        facts=facts | ({"pool": entry.subject} if entry.subject else {}),
        id=f"decision-{entry.ordinal}",
    )


def _ends_reading(entry: Decision, cursor: int | None, since: float) -> bool:
    """True if no entry before this one is needed."""
    return entry.at < since if cursor is None else entry.ordinal <= cursor + 1
