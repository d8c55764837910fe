"""Follows the journal for what people are to be told, whoever wrote it: agents over MCP, the maintainer, the service.

Each entry is told once, also over a restart: how far the journal was read is kept together with what waits to be sent.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Decision
from astraflow.contract.ids import PoolId
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.fleet.alarms import ALARM, ALARM_OVER
from maintainer.notifying import Notifier
from maintainer.outbox import Notice

log = get_logger()

FIRST_PAGE, PAGE = 20, 200
"""Entries asked for at once: little is new, mostly."""
MOST_AGE_S = 86400.0
"""What is older when it is read first is not told any more: the page has it."""
SAME_AGAIN_S = 3600.0
"""An agent that says the same again within this time is not passed on; the journal has it every time."""
KEPT_MATTERS = 100
ESCALATE = "escalate"
"""Kind of what somebody wants people to be told; the others are alarms."""
_FIGURE = re.compile(r"\d+(?:\.\d+)?")


class JournalPort(Protocol):
    """What is read of the fleet service: the fleet plane's client is one."""

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """The journal, newest first."""


class Relay:
    """One for the process."""

    def __init__(self, journal: JournalPort, notifier: Notifier, clock: Clock) -> None:
        self._journal = journal
        self._notifier = notifier
        self._clock = clock
        self._is_away = False

    async def follow(self) -> None:
        """Once. A journal that cannot be read now is read the next time."""
        if not self._notifier.is_on:
            return
        try:
            fresh, newest = await self._unread()
        except AstraFlowError as problem:
            if not self._is_away:
                log.warning("journal_not_followed", problem=str(problem))
            self._is_away = True
            return
        self._is_away = False
        outbox = self._notifier.outbox
        if newest == outbox.cursor:
            return
        since = self._clock.wall() - MOST_AGE_S
        told = [entry for entry in fresh if entry.kind in (ESCALATE, ALARM, ALARM_OVER)]
        if outbox.cursor is not None:
            outbox.lost += sum(entry.at < since for entry in told)
        notices = [notice(entry) for entry in told if entry.at >= since and not self._is_repeated(entry)]
        await self._notifier.relay(notices, cursor=newest)

    async def _unread(self) -> tuple[Sequence[Decision], int]:
        """Entries after the cursor, oldest first, and the newest ordinal there is."""
        page = await self._journal.decisions(limit=FIRST_PAGE)
        newest, cursor = (page[0].ordinal if page else 0), self._notifier.outbox.cursor
        if cursor is not None and newest < cursor:
            cursor = None  # a journal that was begun anew
        since = self._clock.wall() - MOST_AGE_S
        found = list(page)
        while page and not _reaches(page[-1], cursor, since):
            page = await self._journal.decisions(before=page[-1].ordinal, limit=PAGE)
            found += page
        return [entry for entry in reversed(found) if cursor is None or entry.ordinal > cursor], newest

    def _is_repeated(self, entry: Decision) -> bool:
        """Whether its author has told the same lately: its figures do not make it another thing."""
        if entry.kind != ESCALATE:
            return False
        told = self._notifier.outbox.told
        matter = f"{entry.actor.name}: {_FIGURE.sub('#', entry.message)}"
        if entry.at - told.get(matter, float("-inf")) < SAME_AGAIN_S:
            return True
        told.pop(matter, None)  # so that the latest stand last
        told[matter] = entry.at
        for old in list(told)[:-KEPT_MATTERS]:
            del told[old]
        return False


def notice(entry: Decision) -> Notice:
    """What people are told of an entry."""
    severity = entry.message.partition(":")[0]
    title = {
        ALARM: "the fleet service has a trouble",
        ALARM_OVER: "a trouble of the fleet service is over",
    }.get(entry.kind, f"{entry.actor.name} escalates")
    facts: dict[str, str | float] = {"decision": entry.ordinal, "by": entry.actor.name}
    return Notice(
        kind="escalation" if entry.kind == ESCALATE else "alarm",
        severity=severity,
        title=title,
        text=entry.message,
        at=entry.at,
        facts=facts | ({"pool": entry.pool} if entry.pool else {}),
        id=f"decision-{entry.ordinal}",
    )


def _reaches(entry: Decision, cursor: int | None, since: float) -> bool:
    """Whether nothing before this entry is wanted."""
    return entry.at < since if cursor is None else entry.ordinal <= cursor + 1
