"""API between the maintainer and operators: status, mode, notes and transcript."""

from dataclasses import replace

from sqlalchemy import func
from sqlmodel import Session, col, delete, select

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, NotPermitted
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import (
    Maintainer,
    MaintainerControlState,
    MaintainerMode,
    MaintainerStatus,
    TranscriptEntry,
)
from astraflow.contract.fleet.plans import Actor
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.run_changes import RUN
from astraflow.contract.fleet.transcript_chain import GENESIS_HASH, entry_hash
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.runtime.database import Database
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.guard.rules import HUMAN_ROLES
from maintainer.fleet.ledger import rows
from maintainer.fleet.ledger.records import MaintainerSetting
from maintainer.fleet.ledger.tables import EntryRow
from maintainer.fleet.state.fleet import FleetState

MAX_TRANSCRIPT_ENTRIES = 20_000
"""Number of latest transcript entries that are stored; the maintainer's own file has all."""


SILENT_S = 10.0
"""Age of the status from which the maintainer is not expected to wake. Seconds."""


class MaintainerApi:
    """Status, mode, notes and transcript of the maintainer. One instance per service."""

    def __init__(self, fleet: FleetState, manager: FleetManager, database: Database) -> None:
        self._fleet = fleet
        self._manager = manager
        self._database = database

    def receive_status(self, status: MaintainerStatus) -> MaintainerControlState:
        """Stores the maintainer's status and returns the control state that it must follow."""
        heartbeat = self._fleet.maintainer_heartbeat
        heartbeat.status, heartbeat.at = status, self._fleet.clock.now()
        setting, kill = self._fleet.ledger.maintainer_setting, self._fleet.kill
        reason = self._fleet.ledger.switch.reason
        return MaintainerControlState(
            mode=setting.mode if setting is not None else status.mode,
            kill=kill,
            kill_reason=reason[:200],
            wake_requests=heartbeat.wake_requests,
        )

    def view(self) -> Maintainer:
        """Returns the maintainer as clients see it."""
        setting, heartbeat = self._fleet.ledger.maintainer_setting, self._fleet.maintainer_heartbeat
        status = heartbeat.status
        maintainer = (
            Maintainer(mode=status.mode if status is not None else MaintainerMode.OFF)
            if setting is None
            else Maintainer(mode=setting.mode, mode_by=setting.by, mode_reason=setting.reason, mode_at=setting.at)
        )
        age_s = self._fleet.clock.now() - heartbeat.at if status is not None else None
        return replace(maintainer, status=status, status_age_s=age_s)

    async def set_mode(self, mode: MaintainerMode, *, actor: Actor, key: str, reason: str) -> Decision:
        """Sets the maintainer's mode. Raises: NotPermitted for roles other than operator and admin."""
        if actor.role not in HUMAN_ROLES:
            raise NotPermitted(
                f"cannot set the maintainer's mode: {actor.name!r} has the role {actor.role.value}; ask an operator",
                code="fleet.people_only",
            )
        setting = MaintainerSetting(mode=mode, by=actor.name, reason=reason, at=self._fleet.clock.wall())
        return await self._manager.record_decision(
            RecordKind.MAINTAINER_MODE, {"mode": mode.value}, actor, key, reason, setting=setting
        )

    async def wake(self, *, actor: Actor, key: str, reason: str) -> Decision:
        """Lets the running maintainer wake once. Raises: NotPermitted for roles other than operator and admin, Conflict
        when no maintainer can wake."""
        if actor.role not in HUMAN_ROLES:
            raise NotPermitted(
                f"cannot wake the maintainer: {actor.name!r} has the role {actor.role.value}; ask an operator",
                code="fleet.people_only",
            )
        if problem := self._wake_problem():
            raise Conflict(f"cannot wake the maintainer: {problem}", code="maintainer.cannot_wake")
        decision = await self._manager.record_decision(RecordKind.MAINTAINER_WAKE, {}, actor, key, reason)
        heartbeat = self._fleet.maintainer_heartbeat
        if decision.ordinal > heartbeat.wake_decision:  # not a repeated request
            heartbeat.wake_decision = decision.ordinal
            heartbeat.wake_requests += 1
        return decision

    def _wake_problem(self) -> str:
        """Returns why the maintainer cannot wake now, with the remedy; empty if it can."""
        maintainer = self.view()
        if maintainer.status_age_s is None or maintainer.status_age_s > SILENT_S:
            return "none has reported lately; start one with `astraflow serve maintainer`"
        if self._fleet.kill is not KillScope.NONE:
            return f"the kill switch is {self._fleet.kill.value}; set it to none first"
        return "its mode is off; set another mode first" if maintainer.mode is MaintainerMode.OFF else ""

    async def add_note(self, message: str, *, pool: str, actor: Actor, key: str, reason: str) -> Decision:
        """Adds a note to the audit log. Raises: InvalidInput."""
        if not message.strip() or len(message) > 2000:
            raise InvalidInput(
                f"cannot add the note: it has {len(message)} characters; write 1 to 2000 characters",
                code="fleet.invalid_note",
            )
        pool_id = PoolId(pool) if pool else None
        if pool_id is not None and pool_id != RUN:
            self._fleet.pool(pool_id)
        return await self._manager.record_decision(RecordKind.NOTE, {"text": message}, actor, key, reason, pool=pool_id)

    async def store_transcript(self, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        """Stores entries that continue the stored chain; returns the ordinal of the next entry.

        Skips entries that are stored already and equal.
        Raises: CorruptData for a wrong hash, Conflict for an entry that does not continue the chain or differs.
        """
        return await self._database.write(lambda session: self._store(session, chain, entries))

    async def transcript_page(
        self, *, chain: str, wake: str, before: int | None, limit: int
    ) -> tuple[str, tuple[TranscriptEntry, ...], bool]:
        """Returns a page of a transcript, newest first, and whether older entries exist. Default: the latest chain."""

        def read(session: Session) -> tuple[str, tuple[TranscriptEntry, ...], bool]:
            newest = select(EntryRow.chain).order_by(col(EntryRow.sequence).desc()).limit(1)
            chosen = chain or session.exec(newest).first() or ""
            query = select(EntryRow).where(EntryRow.chain == chosen).order_by(col(EntryRow.ordinal).desc())
            query = query.where(EntryRow.wake == wake) if wake else query
            query = query.where(EntryRow.ordinal < before) if before is not None else query
            entry_rows = session.exec(query.limit(limit + 1)).all()
            return chosen, tuple(rows.entry(row) for row in entry_rows[:limit]), len(entry_rows) > limit

        return await self._database.read(read)

    def _store(self, session: Session, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        last = session.exec(
            select(EntryRow).where(EntryRow.chain == chain).order_by(col(EntryRow.ordinal).desc()).limit(1)
        ).first()
        next_ordinal, previous = (last.ordinal + 1, last.hash) if last is not None else (0, GENESIS_HASH)
        for entry in entries:
            _check(entry)
            if entry.ordinal < next_ordinal:
                self._check_unchanged(session, chain, entry)
                continue
            if (
                entry.ordinal != next_ordinal
                or entry.previous != previous
                or (next_ordinal == 0 and entry.hash != chain)
            ):
                raise Conflict(
                    f"cannot store entry {entry.ordinal} of the transcript: it does not continue the chain; "
                    f"send from entry {next_ordinal}",
                    code="transcript.gap",
                )
            session.add(rows.entry_row(entry, chain))
            next_ordinal, previous = next_ordinal + 1, entry.hash
        session.flush()
        latest = session.exec(select(func.max(EntryRow.sequence))).one() or 0
        session.exec(delete(EntryRow).where(col(EntryRow.sequence) <= latest - MAX_TRANSCRIPT_ENTRIES))
        return next_ordinal

    def _check_unchanged(self, session: Session, chain: str, entry: TranscriptEntry) -> None:
        query = select(EntryRow.hash).where(EntryRow.chain == chain, EntryRow.ordinal == entry.ordinal)
        stored_hash = session.exec(query).first()
        if stored_hash is not None and stored_hash != entry.hash:
            raise Conflict(
                f"cannot store entry {entry.ordinal} of the transcript: it differs from the stored entry; "
                "find out what changed the transcript",
                code="transcript.changed",
            )


def _check(entry: TranscriptEntry) -> None:
    if entry_hash(entry) != entry.hash:
        raise CorruptData(
            f"cannot store entry {entry.ordinal} of the transcript: its hash does not match; send it again",
            code="transcript.hash_mismatch",
        )
