"""Decisions from two journals, merged newest first: the fleet service's, and the sizing rule's in dataflow's events.

Each journal is paged by its own ordinals; the cursor of a page contains both.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.plans import Violation
from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render_cause, render_summary
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import Event
from web.live.followed_fleet import FollowedFleet
from web.state.run_state import RunState

FLEET: Final = "fleet"
RULE: Final = "rule"
SOURCES = (FLEET, RULE)
RULE_KINDS = (RecordKind.TARGET_MOVED, RecordKind.TARGET_LIMITED, RecordKind.LIMIT_ENDED)

PAGE_ENTRIES = 50
MAX_ENTRIES = 500
FETCH_ENTRIES = 250
MAX_FETCHES = 20
"""Maximum number of fetches per journal and page. A rarely matching filter returns a partial page with a cursor."""

CURSOR_PATTERN = r"^f[0-9]{1,18}r[0-9]{1,18}$"
"""Cursor of the next page: the ordinals of both journals."""
ENTRY_ID_PATTERN = r"^(fleet|rule)-[0-9]{1,18}$"

_FROM_NEWEST = 10**18 - 1
MINUTE_S = 60.0
MAX_RECOMMENDATION_DISTANCE_S = 600.0
"""Longest distance in seconds between a decision and figures that are shown for it."""


KIND_TONES = {
    RecordKind.APPLY: "good",
    RecordKind.REFUSE: "bad",
    RecordKind.SPEC: "busy",
    RecordKind.HOLD: "warn",
    RecordKind.ESCALATE: "warn",
    RecordKind.KILL_SWITCH: "bad",
    RecordKind.ALARM: "bad",
    RecordKind.ALARM_OVER: "good",
    RecordKind.FAULT: "bad",
    RecordKind.ORPHAN: "warn",
    RecordKind.LAUNCH_FAILED: "bad",
    RecordKind.TARGET_MOVED: "good",
    RecordKind.TARGET_LIMITED: "warn",
    RecordKind.LIMIT_ENDED: "good",
    RecordKind.PROPOSE: "warn",
    RecordKind.REJECT: "bad",
    RecordKind.NOTE: "good",
    RecordKind.MAINTAINER_MODE: "busy",
    RecordKind.MAINTAINER_WAKE: "busy",
}
"""Tone of the label of each kind; other kinds have a neutral one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionEntry:
    """One decision of either journal."""

    source: Literal["fleet", "rule"]
    """Journal: the fleet service's decisions, or target changes of the sizing rule."""
    ordinal: int
    """Grows with each entry of its journal."""
    at: float
    """Unix seconds."""
    kind: RecordKind
    """Kind of decision."""
    pool: str
    """Pool; empty for decisions that concern no single pool."""
    actor: str
    """Name of the actor."""
    role: str
    """Role of the actor."""
    summary: str
    """Decision in one sentence, without its cause."""
    cause: str
    """Cause of a decision of the rule; empty for other decisions."""
    reason: str
    """Reason that the actor gave; empty for decisions of the rule."""
    key: str = ""
    """Idempotency key of the request; empty without one."""
    findings: tuple[Violation, ...] = ()
    """Findings of the guard about the plan; empty for decisions of the rule."""

    @property
    def message(self) -> str:
        """Decision in one sentence."""
        return f"{self.summary}, because {self.cause}" if self.cause else self.summary

    @property
    def why(self) -> str:
        """Cause, or the reason that the actor gave; pools that one tick moved alike have the same text."""
        return self.cause or self.reason

    @property
    def tone(self) -> str:
        """Tone of the label of its kind."""
        return KIND_TONES.get(self.kind, "off")

    @property
    def id(self) -> str:
        """Id in page addresses."""
        return f"{self.source}-{self.ordinal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFilter:
    """Filter of decisions; empty fields match everything."""

    pool: str = ""
    kind: str = ""
    actor: str = ""
    source: str = ""
    text: str = ""

    def matches(self, entry: DecisionEntry) -> bool:
        """Returns whether an entry matches."""
        exact = ((self.pool, entry.pool), (self.kind, entry.kind.value), (self.source, entry.source))
        if any(wanted and wanted != value for wanted, value in exact):
            return False
        if self.actor and self.actor.casefold() not in entry.actor.casefold():
            return False
        return not self.text or self.text.casefold() in f"{entry.message} {entry.reason}".casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPage:
    """One page of decisions, newest first."""

    entries: tuple[DecisionEntry, ...]
    older: str = ""
    """`before` of the next page; empty on the last page."""
    problems: tuple[str, ...] = ()
    """Cause for each journal that could not be read."""


async def decision_page(
    control: ControlPlaneClient,
    fleet: FollowedFleet,
    filters: DecisionFilter,
    *,
    before: str = "",
    limit: int = PAGE_ENTRIES,
) -> DecisionPage:
    """Returns a page of matching decisions, newest first. An unreadable journal is reported; the other is shown."""
    fleet_before, rule_before = _cursor(before)
    journals = (
        _Journal(FLEET, lambda at: _fleet_entries(fleet, filters.pool, at), fleet_before),
        _Journal(RULE, lambda at: _rule_entries(control, filters.pool, at), rule_before),
    )
    matching: list[DecisionEntry] = []
    for journal in journals:
        if filters.source in ("", journal.source):
            await journal.read_until(filters, limit + 1)
            matching += journal.entries
    matching.sort(key=lambda entry: (entry.at, entry.source, entry.ordinal), reverse=True)
    shown = matching[:limit]
    for journal in journals:
        journal.set_shown(shown)
    has_older = len(matching) > limit or any(journal.has_more for journal in journals)
    return DecisionPage(
        entries=tuple(shown),
        older=f"f{journals[0].before}r{journals[1].before}" if has_older else "",
        problems=tuple(journal.problem for journal in journals if journal.problem),
    )


def newest_cursor(entries: Sequence[DecisionEntry]) -> str:
    """Returns the cursor of the newest shown entry of each journal."""
    ends = {
        source: max((entry.ordinal for entry in entries if entry.source == source), default=0) for source in SOURCES
    }
    return f"f{ends[FLEET]}r{ends[RULE]}"


async def newer_count(control: ControlPlaneClient, fleet: FollowedFleet, filters: DecisionFilter, than: str) -> int:
    """Returns how many entries of the newest page are newer than a `newest_cursor`. Raises: InvalidInput."""
    fleet_at, rule_at = _cursor(than)
    page = await decision_page(control, fleet, filters)
    return sum(entry.ordinal > (fleet_at if entry.source == FLEET else rule_at) for entry in page.entries)


async def decision(control: ControlPlaneClient, fleet: FollowedFleet, entry_id: str) -> DecisionEntry | None:
    """Returns one decision; None when its journal does not contain it (any more). Raises: errors of reading it."""
    if not re.match(ENTRY_ID_PATTERN, entry_id):
        return None
    source, _, number = entry_id.partition("-")
    ordinal = int(number)
    if source == FLEET:
        entries = await _fleet_entries(fleet, "", ordinal + 1, 1)
    else:
        entries = await _rule_entries(control, "", ordinal + 1, 1)
    return next((entry for entry in entries if entry.ordinal == ordinal), None)


async def recommendation_at(
    state: RunState, control: ControlPlaneClient, entry: DecisionEntry
) -> PoolRecommendation | None:
    """Returns the recommendation for the pool at the tick of a decision, or the nearest retained one.

    Raises: errors of the request to dataflow.
    """
    newest = state.report
    if newest is None or not entry.pool:
        return None
    recommendations = [recommendation for recommendation in newest.recommendations if recommendation.pool == entry.pool]
    is_old = newest.at - entry.at > 14 * MINUTE_S
    age_s = max(0.0, newest.at - entry.at)
    after = max(0, newest.sequence - round(age_s) - 2 * round(MINUTE_S))
    limit = min(5000, round(age_s / (MINUTE_S if is_old else 1.0)) + 4 * round(MINUTE_S))
    past = await control.history(after_sequence=after, limit=limit, resolution_s=60 if is_old else 1)
    recommendations += [
        recommendation
        for report in past
        for recommendation in report.recommendations
        if recommendation.pool == entry.pool
    ]
    nearest = min(recommendations, key=lambda recommendation: abs(recommendation.at - entry.at), default=None)
    return nearest if nearest is not None and abs(nearest.at - entry.at) <= MAX_RECOMMENDATION_DISTANCE_S else None


class _Journal:
    """One journal, read backwards from an ordinal."""

    def __init__(self, source: str, read: Callable[[int], Awaitable[Sequence[DecisionEntry]]], before: int) -> None:
        self.source = source
        self.before = before
        self.entries: list[DecisionEntry] = []
        self.has_more = False
        self.problem = ""
        self._read = read
        self._read_before = before

    async def read_until(self, filters: DecisionFilter, wanted: int) -> None:
        """Reads until `wanted` entries match, or the journal ends."""
        for _ in range(MAX_FETCHES):
            try:
                read = await self._read(self._read_before)
            except AstraFlowError as error:
                self.problem = str(error)
                return
            self.entries += [entry for entry in read if filters.matches(entry)]
            self._read_before = read[-1].ordinal if read else self._read_before
            self.has_more = len(read) == FETCH_ENTRIES
            if not self.has_more or len(self.entries) >= wanted:
                return

    def set_shown(self, shown: Sequence[DecisionEntry]) -> None:
        """Sets the cursor after the shown entries: at the newest matching one that is not shown, else where reading
        ended."""
        not_shown = [entry.ordinal for entry in self.entries if entry not in shown]
        self.before = max(not_shown) + 1 if not_shown else self._read_before
        self.has_more = self.has_more or bool(not_shown)


async def _fleet_entries(
    fleet: FollowedFleet, pool: str, before: int, limit: int = FETCH_ENTRIES
) -> list[DecisionEntry]:
    if fleet.client is None:
        return []
    bound = None if before >= _FROM_NEWEST else before
    pool_id = PoolId.unchecked(pool) if pool else None
    return [entry_of(decision) for decision in await fleet.client.decisions(pool=pool_id, before=bound, limit=limit)]


async def _rule_entries(
    control: ControlPlaneClient, pool: str, before: int, limit: int = FETCH_ENTRIES
) -> list[DecisionEntry]:
    bound = None if before >= _FROM_NEWEST else before
    query = EventQuery(kinds=RULE_KINDS, subject=pool, before=bound, limit=limit)
    return [entry_of(event) for event in (await control.events(query)).events if event.kind in RULE_KINDS]


def entry_of(record: Event | Decision) -> DecisionEntry:
    """Returns the entry of a decision of the fleet service, or of an event of the sizing rule."""
    return DecisionEntry(
        source=FLEET if isinstance(record, Decision) else RULE,
        ordinal=record.ordinal,
        at=record.at,
        kind=record.kind,
        pool=record.subject,
        actor=record.actor,
        role=record.role.value if isinstance(record, Decision) else "rule",
        summary=render_summary(record),
        cause=render_cause(record),
        reason=record.reason,
        key=record.key if isinstance(record, Decision) else "",
        findings=record.findings if isinstance(record, Decision) else (),
    )


def _cursor(text: str) -> tuple[int, int]:
    if not text:
        return _FROM_NEWEST, _FROM_NEWEST
    match = re.match(r"^f(\d{1,18})r(\d{1,18})$", text)
    if match is None:
        raise InvalidInput(
            f"cannot read decisions before {text[:40]!r}: not a cursor; use `older` of the previous page",
            code="decisions.invalid_cursor",
        )
    return int(match[1]), int(match[2])
