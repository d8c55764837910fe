"""Finding entries of the audit: what an address asks for, a page of it, and all of it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlencode

from sqlalchemy import Select, or_
from sqlmodel import Session, col, select

from web.db import Database
from web.tables import AuditEntry

PAGE_ENTRIES = 50
BATCH = 1000
RESULTS = ("done", "refused", "failed")

S = TypeVar("S", bound=Select[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries; empty means any. What cannot be understood asks for nothing."""

    actor: str = ""
    action: str = ""
    result: str = ""
    text: str = ""
    """Somewhere in target, reason, before or after, whatever the case."""
    since: str = ""
    until: str = ""
    """Days of UTC, both included, as in 2026-11-21."""

    @property
    def query(self) -> str:
        """The same as part of an address."""
        given = {name: getattr(self, name) for name in FIELDS}
        return urlencode({name: value for name, value in given.items() if value})


FIELDS = ("actor", "action", "result", "text", "since", "until")


def filter_from(asked: Mapping[str, str]) -> AuditFilter:
    """The filter in an address."""
    given = {name: asked.get(name, "").replace("\0", "").strip()[:200] for name in FIELDS}
    if given["result"] not in RESULTS:
        given["result"] = ""
    for name in ("since", "until"):
        given[name] = given[name] if _day(given[name]) else ""
    return AuditFilter(**given)


def page(
    session: Session, asked: AuditFilter, *, before: int | None, limit: int = PAGE_ENTRIES
) -> Sequence[AuditEntry]:
    """Matching entries, newest first, older than `before`."""
    query = _where(select(AuditEntry), asked)
    if before is not None:
        query = query.where(col(AuditEntry.sequence) < before)
    return session.scalars(query.order_by(col(AuditEntry.sequence).desc()).limit(limit)).all()


def newer(session: Session, asked: AuditFilter, *, than: int) -> int:
    """How many matching entries came after that one; no more than fit on a page are counted."""
    query = _where(select(AuditEntry.sequence).where(col(AuditEntry.sequence) > than), asked)
    return len(session.scalars(query.limit(PAGE_ENTRIES)).all())


def known(session: Session) -> tuple[Sequence[str], Sequence[str]]:
    """The names of actors and of actions that there are entries of."""
    actors = session.exec(select(AuditEntry.actor).distinct().order_by(AuditEntry.actor)).all()
    actions = session.exec(select(AuditEntry.action).distinct().order_by(AuditEntry.action)).all()
    return [actor for actor in actors if actor], actions


async def everything(database: Database, asked: AuditFilter) -> AsyncIterator[Sequence[AuditEntry]]:
    """All matching entries, newest first, in batches: what is written meanwhile is not among them."""
    before = None
    while True:
        bound = before
        batch = await database.look(lambda session, bound=bound: page(session, asked, before=bound, limit=BATCH))  # type: ignore[misc] # mypy cannot infer a lambda with a default
        if not batch:
            return
        yield batch
        before = batch[-1].sequence


def _where(query: S, asked: AuditFilter) -> S:
    for column, value in ((AuditEntry.actor, asked.actor), (AuditEntry.action, asked.action)):
        if value:
            query = query.where(col(column) == value)
    if asked.result:
        query = query.where(col(AuditEntry.result) == asked.result)
    if asked.text:
        places = (AuditEntry.target, AuditEntry.reason, AuditEntry.before, AuditEntry.after)
        query = query.where(or_(*(col(place).icontains(asked.text, autoescape=True) for place in places)))
    since, until = _day(asked.since), _day(asked.until)
    if since:
        query = query.where(col(AuditEntry.at) >= since.timestamp())
    if until:
        query = query.where(col(AuditEntry.at) < (until + timedelta(days=1)).timestamp())
    return query


def _day(text: str) -> datetime | None:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    is_in_reach = 1970 <= found.year <= 9000
    return datetime(found.year, found.month, found.day, tzinfo=UTC) if is_in_reach else None
