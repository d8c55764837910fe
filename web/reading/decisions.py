"""Decisions of two journals as one, newest first: the fleet service's, and the rule's: targets that moved, or were kept
from it.

Both are paged by their own ordinals; a page of both says where each goes on.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet import Decision, Finding
from astraflow.contract.ids import PoolId
from astraflow.contract.lookups import EventQuery
from astraflow.contract.reports import Event
from web.parts import Parts

FLEET, RULE = "fleet", "rule"
SOURCES = (FLEET, RULE)
RULE_KINDS = ("target_moved", "target_capped", "cap_ended")

PAGE_ENTRIES = 50
MOST_ENTRIES = 500
FETCH = 250
MOST_FETCHES = 20
"""Of each journal for one page: a filter that matches little is answered with what was found, and where to go on."""

CURSOR = r"^f[0-9]{1,18}r[0-9]{1,18}$"
"""Where the next page begins: ordinals of the two journals."""
ID = r"^(fleet|rule)-[0-9]{1,18}$"

_NEWEST = 10**18 - 1
MINUTE_S = 60.0
NEAR_S = 600.0
"""Figures that are farther from a decision say nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decision, of either journal."""

    source: str
    ordinal: int
    at: float
    kind: str
    pool: str
    actor: str
    role: str
    message: str
    """What was decided."""
    reason: str
    key: str = ""
    findings: tuple[Finding, ...] = ()
    """What the guard said of the plan; of the fleet's journal only."""

    @property
    def id(self) -> str:
        """Its place in the address."""
        return f"{self.source}-{self.ordinal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which decisions; empty means any."""

    pool: str = ""
    kind: str = ""
    actor: str = ""
    source: str = ""
    text: str = ""

    def matches(self, entry: Entry) -> bool:
        """Whether it is one of them."""
        exact = ((self.pool, entry.pool), (self.kind, entry.kind), (self.source, entry.source))
        if any(wanted and wanted != found for wanted, found in exact):
            return False
        if self.actor and self.actor.casefold() not in entry.actor.casefold():
            return False
        return not self.text or self.text.casefold() in f"{entry.message} {entry.reason}".casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPage:
    """One page, newest first."""

    entries: tuple[Entry, ...]
    older: str = ""
    """`before` of the next page; empty on the last."""
    problems: tuple[str, ...] = ()
    """Why a journal is not part of it."""


async def decision_page(parts: Parts, asked: Asked, *, before: str = "", limit: int = PAGE_ENTRIES) -> DecisionPage:
    """What was asked for, newest first. A journal that cannot be read is named, and the other is shown."""
    fleet_before, rule_before = _cursor(before)
    journals = (
        _Journal(FLEET, lambda at: _of_fleet(parts, asked.pool, at), fleet_before),
        _Journal(RULE, lambda at: _of_rule(parts, asked.pool, at), rule_before),
    )
    found: list[Entry] = []
    for journal in journals:
        if asked.source in ("", journal.source):
            await journal.fill(asked, limit + 1)
            found += journal.entries
    found.sort(key=lambda entry: (entry.at, entry.source, entry.ordinal), reverse=True)
    shown = found[:limit]
    for journal in journals:
        journal.show(shown)
    has_older = len(found) > limit or any(journal.has_more for journal in journals)
    return DecisionPage(
        entries=tuple(shown),
        older=f"f{journals[0].before}r{journals[1].before}" if has_older else "",
        problems=tuple(journal.problem for journal in journals if journal.problem),
    )


def reached(entries: Sequence[Entry]) -> str:
    """The newest of each journal that is shown, in the form of a cursor."""
    ends = {source: max((one.ordinal for one in entries if one.source == source), default=0) for source in SOURCES}
    return f"f{ends[FLEET]}r{ends[RULE]}"


async def newer_than(parts: Parts, asked: Asked, than: str) -> int:
    """How many of the newest page came after those that `reached` named. Raises: InvalidInput for what it did not."""
    fleet, rule = _cursor(than)
    page = await decision_page(parts, asked)
    return sum(one.ordinal > (fleet if one.source == FLEET else rule) for one in page.entries)


async def decision(parts: Parts, entry_id: str) -> Entry | None:
    """One decision; None when it is not (or not any more) in its journal. Raises: what reading it raises."""
    if not re.match(ID, entry_id):
        return None
    source, _, number = entry_id.partition("-")
    ordinal = int(number)
    read = (_of_fleet if source == FLEET else _of_rule)(parts, "", ordinal + 1, 1)
    return next((entry for entry in await read if entry.ordinal == ordinal), None)


async def advice_at(parts: Parts, entry: Entry) -> PoolAdvice | None:
    """What the rule said of the pool at the tick of a decision, or at the nearest one that is kept.

    Raises: what asking dataflow raises.
    """
    newest = parts.state.report
    if newest is None or not entry.pool:
        return None
    known = [advice for advice in newest.advice if advice.pool == entry.pool]
    is_old = newest.at - entry.at > 14 * MINUTE_S
    age_s = max(0.0, newest.at - entry.at)
    after = max(0, newest.sequence - round(age_s) - 2 * round(MINUTE_S))
    limit = min(5000, round(age_s / (MINUTE_S if is_old else 1.0)) + 4 * round(MINUTE_S))
    past = await parts.control.history(after_sequence=after, limit=limit, resolution_s=60 if is_old else 1)
    known += [advice for report in past for advice in report.advice if advice.pool == entry.pool]
    said = [advice for advice in known if advice.sentence and advice.sentence in entry.message]
    nearest = min(said or known, key=lambda advice: abs(advice.at - entry.at), default=None)
    return nearest if nearest is not None and abs(nearest.at - entry.at) <= NEAR_S else None


class _Journal:
    """One of the two, read backwards from an ordinal."""

    def __init__(self, source: str, read: Callable[[int], Awaitable[Sequence[Entry]]], before: int) -> None:
        self.source = source
        self.before = before
        self.entries: list[Entry] = []
        self.has_more = False
        self.problem = ""
        self._read = read
        self._reached = before

    async def fill(self, asked: Asked, wanted: int) -> None:
        """Read until there are so many that match, or no more."""
        for _ in range(MOST_FETCHES):
            try:
                read = await self._read(self._reached)
            except AstraFlowError as problem:
                self.problem = str(problem)
                return
            self.entries += [entry for entry in read if asked.matches(entry)]
            self._reached = read[-1].ordinal if read else self._reached
            self.has_more = len(read) == FETCH
            if not self.has_more or len(self.entries) >= wanted:
                return

    def show(self, shown: Sequence[Entry]) -> None:
        """Go on after what is shown of it: from the newest that was found and is left out, else from where reading
        ended."""
        left = [entry.ordinal for entry in self.entries if entry not in shown]
        self.before = max(left) + 1 if left else self._reached
        self.has_more = self.has_more or bool(left)


async def _of_fleet(parts: Parts, pool: str, before: int, limit: int = FETCH) -> list[Entry]:
    if parts.fleet is None:
        return []
    bound = None if before >= _NEWEST else before
    of_pool = PoolId.known(pool) if pool else None
    return [_fleet_entry(one) for one in await parts.fleet.decisions(pool=of_pool, before=bound, limit=limit)]


async def _of_rule(parts: Parts, pool: str, before: int, limit: int = FETCH) -> list[Entry]:
    bound = None if before >= _NEWEST else before
    query = EventQuery(kinds=RULE_KINDS, subject=pool, before=bound, limit=limit)
    return [_rule_entry(event) for event in (await parts.control.events(query)).events if event.kind in RULE_KINDS]


def _fleet_entry(one: Decision) -> Entry:
    return Entry(
        source=FLEET,
        ordinal=one.ordinal,
        at=one.at,
        kind=one.kind,
        pool=one.pool,
        actor=one.actor.name,
        role=one.actor.role.value,
        message=one.message,
        reason=one.reason,
        key=one.key,
        findings=one.findings,
    )


def _rule_entry(event: Event) -> Entry:
    """`by the sizer: eu: 2 to 3 nodes, because ...`: who, and the sentence."""
    by, _, sentence = event.message.partition(": ")
    actor = by.removeprefix("by ") if sentence else "the rule"
    return Entry(
        source=RULE,
        ordinal=event.ordinal,
        at=event.at,
        kind=event.kind,
        pool=event.subject,
        actor=actor,
        role="rule",
        message=sentence or event.message,
        reason="",
    )


def _cursor(text: str) -> tuple[int, int]:
    if not text:
        return _NEWEST, _NEWEST
    found = re.match(r"^f(\d{1,18})r(\d{1,18})$", text)
    if found is None:
        raise InvalidInput(f"{text[:40]!r} is not where a page begins: take `older` of the page before")
    return int(found[1]), int(found[2])
