"""How long the audit is kept: a choice of the administrators, carried out once a day."""

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web.accounts.viewer import Viewer
from web.audit.entries import Author, Deed, Trail
from web.db import Database
from web.tables import Preference

log = get_logger()

DAY_S = 86400.0
DEFAULT_DAYS = 365
SHORTEST_DAYS, LONGEST_DAYS = 30, 3650

_NAME = "audit_days"
_ITSELF = Author(name="astraflow", role="", via="astraflow", came_from="")


class Retention:
    """Removes what is too old, and leaves an entry that says so."""

    def __init__(self, database: Database, *, clock: Clock, trail: Trail) -> None:
        self._database = database
        self._clock = clock
        self._trail = trail

    async def days(self) -> int:
        """How long entries are kept."""
        return await self._database.look(_days)

    async def choose(self, days: int, *, by: Viewer, reason: str = "") -> None:
        """Keep entries for so many days. Raises: InvalidInput."""
        if not SHORTEST_DAYS <= days <= LONGEST_DAYS:
            raise InvalidInput(f"the audit is kept for {SHORTEST_DAYS} to {LONGEST_DAYS} days")

        def write(session: Session) -> None:
            before = _days(session)
            session.merge(Preference(name=_NAME, value=str(days)))
            deed = Deed(
                action="audit.retention", target="audit", before={"days": before}, after={"days": days}, reason=reason
            )
            self._trail.append(session, by.author, deed)

        await self._database.do(write)

    async def prune(self) -> int:
        """Remove what is older than that; returns how many entries."""
        now = self._clock.wall()
        return await self._database.do(
            lambda session: self._trail.prune(session, before_at=now - _days(session) * DAY_S, author=_ITSELF)
        )

    async def run(self) -> None:
        """Prune now and every day, until cancelled."""
        await periodic(self._try_prune, every_s=DAY_S, clock=self._clock)

    async def _try_prune(self) -> None:
        try:
            removed = await self.prune()
        except DBAPIError as problem:
            log.warning("audit_not_pruned", problem=str(problem.orig))
        else:
            if removed:
                log.info("audit_pruned", entries=removed)


def _days(session: Session) -> int:
    chosen = session.get(Preference, _NAME)
    return int(chosen.value) if chosen else DEFAULT_DAYS
