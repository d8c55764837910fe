"""Queries of the audit log: filter from a URL, a page of entries, and all entries."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlencode

from sqlalchemy import Select, or_
from sqlmodel import Session, col, select

from web.database.db import Database
from web.database.tables import AuditEntry

PAGE_ENTRIES = 50
BATCH = 1000
RESULTS = ("done", "refused", "failed", "unknown")

S = TypeVar("S", bound=Select[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Filter of entries; empty matches any value, invalid values are ignored."""

    actor: str = ""
    action: str = ""
    result: str = ""
    text: str = ""
    """Substring of target, reason, before or after, ignoring case."""
    since: str = ""
    until: str = ""
    """Days in UTC, both inclusive, as 2026-11-21."""

    @property
    def query(self) -> str:
        """Filter as a URL query."""
        filter_fields = {name: getattr(self, name) for name in FIELDS}
        return urlencode({name: value for name, value in filter_fields.items() if value})


FIELDS = ("actor", "action", "result", "text", "since", "until")


def filter_from(filters: Mapping[str, str]) -> AuditFilter:
    """Filter from URL parameters."""
    filter_fields = {name: filters.get(name, "").replace("\0", "").strip()[:200] for name in FIELDS}
    if filter_fields["result"] not in RESULTS:
        filter_fields["result"] = ""
    for name in ("since", "until"):
        filter_fields[name] = filter_fields[name] if _day(filter_fields[name]) else ""
    return AuditFilter(**filter_fields)


def page(
    session: Session, filters: AuditFilter, *, before: int | None, limit: int = PAGE_ENTRIES
) -> Sequence[AuditEntry]:
    """Matching entries, newest first, older than `before`."""
    query = _where(select(AuditEntry), filters)
    if before is not None:
        query = query.where(col(AuditEntry.sequence) < before)
    return session.scalars(query.order_by(col(AuditEntry.sequence).desc()).limit(limit)).all()


def newer(session: Session, filters: AuditFilter, *, than: int) -> int:
    """Number of newer matching entries, at most one page."""
    query = _where(select(AuditEntry.sequence).where(col(AuditEntry.sequence) > than), filters)
    return len(session.scalars(query.limit(PAGE_ENTRIES)).all())


def known(session: Session) -> tuple[Sequence[str], Sequence[str]]:
    """Names of actors and actions that occur in the log."""
    actors = session.exec(select(AuditEntry.actor).distinct().order_by(AuditEntry.actor)).all()
    actions = session.exec(select(AuditEntry.action).distinct().order_by(AuditEntry.action)).all()
    return [actor for actor in actors if actor], actions


async def everything(database: Database, filters: AuditFilter) -> AsyncIterator[Sequence[AuditEntry]]:
    """All matching entries, newest first, in batches; entries written meanwhile are not included."""
    before = None
    while True:
        bound = before
        batch = await database.read(lambda session, bound=bound: page(session, filters, before=bound, limit=BATCH))  # type: ignore[misc] # mypy cannot infer a lambda with a default
        if not batch:
            return
        yield batch
        before = batch[-1].sequence


def _where(query: S, filters: AuditFilter) -> S:
    for column, value in ((AuditEntry.actor, filters.actor), (AuditEntry.action, filters.action)):
        if value:
            query = query.where(col(column) == value)
    if filters.result:
        query = query.where(col(AuditEntry.result) == filters.result)
    if filters.text:
        columns = (AuditEntry.target, AuditEntry.reason, AuditEntry.before, AuditEntry.after)
        query = query.where(or_(*(col(column_).icontains(filters.text, autoescape=True) for column_ in columns)))
    since, until = _day(filters.since), _day(filters.until)
    if since:
        query = query.where(col(AuditEntry.at) >= since.timestamp())
    if until:
        query = query.where(col(AuditEntry.at) < (until + timedelta(days=1)).timestamp())
    return query


def _day(text: str) -> datetime | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    is_supported = 1970 <= day.year <= 9000
    return datetime(day.year, day.month, day.day, tzinfo=UTC) if is_supported else None
