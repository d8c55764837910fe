"""Retention of the audit log: set by admins, applied once a day."""

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from web.database.db import Database
from web.database.tables import Preference
from web.security.audit_log import AuditedCommand, AuditLog, Author

log = get_logger()

DAY_S = 86400.0
DEFAULT_DAYS = 365
MIN_DAYS, MAX_DAYS = 30, 3650

_NAME = "audit_days"
_RETENTION_AUTHOR = Author(name="astraflow", role="", via="astraflow", came_from="")


class Retention:
    """Removes old entries, and appends an entry about it."""

    def __init__(self, database: Database, *, clock: Clock, audit_log: AuditLog) -> None:
        self._database = database
        self._clock = clock
        self._audit_log = audit_log

    async def days(self) -> int:
        """Retention in days."""
        return await self._database.read(_days)

    async def set_days(self, days: int, *, by: Author, reason: str = "") -> None:
        """Sets the retention. Raises: InvalidInput."""
        if not MIN_DAYS <= days <= MAX_DAYS:
            raise InvalidInput(
                f"cannot set the retention to {days} days: out of range; use {MIN_DAYS} to {MAX_DAYS}",
                code="audit.invalid_retention",
            )

        def write(session: Session) -> None:
            before = _days(session)
            session.merge(Preference(name=_NAME, value=str(days)))
            command = AuditedCommand(
                action="audit.retention", target="audit", before={"days": before}, after={"days": days}, reason=reason
            )
            self._audit_log.append(session, by, command)

        await self._database.write(write)

    async def prune(self) -> int:
        """Removes entries older than the retention; returns their number."""
        now = self._clock.wall()
        return await self._database.write(
            lambda session: self._audit_log.prune(
                session, before_at=now - _days(session) * DAY_S, author=_RETENTION_AUTHOR
            )
        )

    async def run(self) -> None:
        """Prunes now and every day, until cancelled."""
        await periodic(self._try_prune, every_s=DAY_S, clock=self._clock)

    async def _try_prune(self) -> None:
        try:
            removed = await self.prune()
        except (DBAPIError, Unavailable) as problem:
            log.warning("audit_prune_failed", problem=str(problem))
        else:
            if removed:
                log.info("audit_pruned", entries=removed)


def _days(session: Session) -> int:
    preference = session.get(Preference, _NAME)
    return int(preference.value) if preference else DEFAULT_DAYS
