"""Between the maintainer and people: how it says it is, what it is told to go by, its notes and its transcript."""

from dataclasses import replace

from sqlalchemy import func
from sqlmodel import Session, col, delete, select

from astraflow.contract.chains import FIRST, digest_of
from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, NotPermitted
from astraflow.contract.fleet import Actor, Decision
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import (
    Maintainer,
    MaintainerMode,
    MaintainerOrders,
    MaintainerStatus,
    TranscriptEntry,
)
from astraflow.runtime.database import Database
from maintainer.fleet import rows
from maintainer.fleet.desk import Desk
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.guard import PEOPLE
from maintainer.fleet.records import MaintainerOrder
from maintainer.fleet.tables import EntryRow

KEPT_ENTRIES = 20_000
"""Of the copies of transcripts, the latest; the maintainer's own file has them all."""


class Liaison:
    """One for the service."""

    def __init__(self, fleet: Fleet, desk: Desk, database: Database) -> None:
        self._fleet = fleet
        self._desk = desk
        self._database = database

    def beat(self, status: MaintainerStatus) -> MaintainerOrders:
        """Take in how it is, and say what it is to go by."""
        heard = self._fleet.heard
        heard.status, heard.at = status, self._fleet.clock.now()
        order, kill = self._fleet.ledger.order, self._fleet.kill
        reason = self._fleet.ledger.switch.reason
        return MaintainerOrders(
            mode=order.mode if order is not None else status.mode, kill=kill, kill_reason=reason[:200]
        )

    def view(self) -> Maintainer:
        """As others see it."""
        order, heard = self._fleet.ledger.order, self._fleet.heard
        status = heard.status
        told = (
            Maintainer(mode=status.mode if status is not None else MaintainerMode.OFF)
            if order is None
            else Maintainer(mode=order.mode, mode_by=order.by, mode_reason=order.reason, mode_at=order.at)
        )
        age_s = self._fleet.clock.now() - heard.at if status is not None else None
        return replace(told, status=status, status_age_s=age_s)

    async def set_mode(self, mode: MaintainerMode, *, actor: Actor, key: str, reason: str) -> Decision:
        """People say how far it may go. Raises: NotPermitted for anybody else."""
        if actor.role not in PEOPLE:
            raise NotPermitted(
                f"people say how far the maintainer may go; {actor.name} has the role {actor.role.value}"
            )
        order = MaintainerOrder(mode=mode, by=actor.name, reason=reason, at=self._fleet.clock.wall())
        message = f"the maintainer is in mode {mode.value}"
        return await self._desk.noted("maintainer_mode", message, actor, key, reason, order=order)

    async def hand_over(self, message: str, *, pool: str, actor: Actor, key: str, reason: str) -> Decision:
        """A note for whoever comes next. Raises: InvalidInput."""
        if not message.strip() or len(message) > 2000:
            raise InvalidInput("a note has 1 to 2000 characters")
        known = self._fleet.pool(PoolId(pool)).spec.id if pool else None
        return await self._desk.noted("note", message, actor, key, reason, pool=known)

    async def keep(self, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        """Keep what follows what is kept; returns the ordinal that is wanted next.

        Entries that are kept already are passed over when they are the same.
        Raises: CorruptData for a hash that is not right, Conflict for an entry that does not follow or differs.
        """
        return await self._database.do(lambda session: self._keep(session, chain, entries))

    async def page(
        self, *, chain: str, wake: str, before: int | None, limit: int
    ) -> tuple[str, tuple[TranscriptEntry, ...], bool]:
        """Of one transcript (the latest, when `chain` is empty), newest first; and whether there are older ones."""

        def read(session: Session) -> tuple[str, tuple[TranscriptEntry, ...], bool]:
            newest = select(EntryRow.chain).order_by(col(EntryRow.place).desc()).limit(1)
            chosen = chain or session.exec(newest).first() or ""
            query = select(EntryRow).where(EntryRow.chain == chosen).order_by(col(EntryRow.ordinal).desc())
            query = query.where(EntryRow.wake == wake) if wake else query
            query = query.where(EntryRow.ordinal < before) if before is not None else query
            found = session.exec(query.limit(limit + 1)).all()
            return chosen, tuple(rows.entry(row) for row in found[:limit]), len(found) > limit

        return await self._database.do(read)

    def _keep(self, session: Session, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        last = session.exec(
            select(EntryRow).where(EntryRow.chain == chain).order_by(col(EntryRow.ordinal).desc()).limit(1)
        ).first()
        wanted, previous = (last.ordinal + 1, last.hash) if last is not None else (0, FIRST)
        for entry in entries:
            _check(entry)
            if entry.ordinal < wanted:
                self._compare(session, chain, entry)
                continue
            if entry.ordinal != wanted or entry.previous != previous or (wanted == 0 and entry.hash != chain):
                raise Conflict(f"entry {entry.ordinal} of the transcript does not follow: entry {wanted} is wanted")
            session.add(rows.entry_row(entry, chain))
            wanted, previous = wanted + 1, entry.hash
        session.flush()
        latest = session.exec(select(func.max(EntryRow.place))).one() or 0
        session.exec(delete(EntryRow).where(col(EntryRow.place) <= latest - KEPT_ENTRIES))
        return wanted

    def _compare(self, session: Session, chain: str, entry: TranscriptEntry) -> None:
        query = select(EntryRow.hash).where(EntryRow.chain == chain, EntryRow.ordinal == entry.ordinal)
        known = session.exec(query).first()
        if known is not None and known != entry.hash:
            raise Conflict(f"entry {entry.ordinal} of the transcript is not as it was: it has been changed since")


def _check(entry: TranscriptEntry) -> None:
    found = digest_of(entry)
    if found != entry.hash:
        raise CorruptData(f"entry {entry.ordinal} of the transcript does not have the hash that it says")
