"""Ledger of the fleet service, durable before each action: intents, instances, orphans and the audit log.

One process owns a ledger. Live records are also in memory; every change is one transaction, visible once committed.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Self, TypeVar

from sqlalchemy import func
from sqlmodel import Session, col, delete, select

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import InstanceState, LaunchId
from astraflow.contract.fleet.maintainer import Proposal, ProposalState
from astraflow.contract.fleet.plans import PlanId
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.runtime.database import Database, open_database
from astraflow.runtime.logs import get_logger
from maintainer.fleet.ledger import rows
from maintainer.fleet.ledger.ownership import check_owner_row, next_epoch
from maintainer.fleet.ledger.records import KillSwitch, LaunchRecord, MaintainerSetting, Orphan, PoolRecord, Reply
from maintainer.fleet.ledger.tables import (
    DecisionRow,
    InstanceRow,
    MaintainerRow,
    OrphanRow,
    OwnerRow,
    PoolRow,
    ProposalRow,
    ReplyRow,
    SwitchRow,
)

T = TypeVar("T")
log = get_logger()

REJECTED_S = 86400.0
"""Maximum time for which rejections are remembered. Seconds."""
MEMORY_WINDOW_S = 26 * 3600.0
"""Time for which terminated instances stay in memory: longer than a day in any time zone. Seconds."""

_STORED = (
    "pools",
    "records",
    "orphans",
    "switch",
    "maintainer_setting",
    "waiting_proposals",
    "rejected_proposals",
    "next_decision",
    "identity",
)
"""Attributes of a ledger that equal the stored state."""


class Ledger:
    """Pools, launches and other records, by id. Reads come from memory; all writes go through `change`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self.pools: dict[PoolId, PoolRecord] = {}
        self.records: dict[LaunchId, LaunchRecord] = {}
        """Launches that are not gone, and those that ended within `MEMORY_WINDOW_S`."""
        self.orphans: dict[tuple[str, str], Orphan] = {}
        """Orphans by provider and handle."""
        self.switch = KillSwitch()
        self.maintainer_setting: MaintainerSetting | None = None
        """Setting of the maintainer; None until an operator sets it."""
        self.waiting_proposals: dict[PlanId, Proposal] = {}
        """Proposals that wait for a decision."""
        self.rejected_proposals: dict[PlanId, Proposal] = {}
        """Proposals rejected within `REJECTED_S`."""
        self.next_decision = 1
        self.identity = ""
        """Random identity of this ledger, from its first owner on."""
        self._epoch: int | None = None
        self._loaded_at = 0.0
        """Unix seconds of the first load."""
        self._is_uncertain = False
        """True after a write that failed in an outage of the database, and may have been committed."""

    async def take_ownership(self) -> None:
        """Takes ownership: the ledger then refuses writes of the previous owner. Before, no owner is checked."""
        process = f"{socket.gethostname()} {os.getpid()}"
        self._epoch = await self._database.write(lambda session: next_epoch(session, process))

    async def load(self, *, now: float) -> Self:
        """Loads the stored records."""
        self._loaded_at = now
        await self._database.write(lambda session: self._load(session, now))
        return self

    def alive(self, pool: PoolId | None = None) -> tuple[LaunchRecord, ...]:
        """Returns launches that are not gone."""
        return tuple(
            record
            for record in self.records.values()
            if record.instance.state is not InstanceState.GONE and pool in (None, record.instance.pool)
        )

    def billed(self, pool: PoolId | None = None) -> tuple[LaunchRecord, ...]:
        """Returns launches that may cost money: those that are not gone, and gone ones that a provider still lists."""
        orphaned = {orphan.launch_id for orphan in self.orphans.values()}
        return tuple(
            record
            for record in self.records.values()
            if (record.instance.state is not InstanceState.GONE or record.id in orphaned)
            and pool in (None, record.instance.pool)
        )

    def tagged(self, name: str) -> str:
        """Returns a name with the ledger's identity, for tags that no other fleet service uses."""
        return f"{name}-{self.identity}" if self.identity else name

    def of_pool(self, pool: PoolId) -> tuple[LaunchRecord, ...]:
        """Returns launches of a pool, including recently ended ones."""
        return tuple(record for record in self.records.values() if record.instance.pool == pool)

    async def change(self, decide: Callable[["Ledger"], tuple["Changes", T]]) -> T:
        """Calls `decide` with the ledger, writes the returned changes in one transaction, then updates memory.

        Changes are serialized, so `decide` can compare and set. A cancelled caller does not interrupt the change, so
        memory always equals the stored state. After an outage of the database, memory is loaded again before the
        next change. Raises: Unavailable in an outage; the change may have been stored.
        """
        return await asyncio.shield(asyncio.create_task(self._change(decide)))

    async def _change(self, decide: Callable[["Ledger"], tuple["Changes", T]]) -> T:
        async with self._lock:
            if self._is_uncertain:
                await self._reload()
            changes, result = decide(self)
            if changes:
                changes.epoch = self._epoch
                try:
                    await self._database.write(changes.write)
                except Unavailable:
                    self._is_uncertain = True
                    raise
                self._update_memory(changes)
            return result

    async def _reload(self) -> None:
        stored = await Ledger(self._database).load(now=self._loaded_at)
        for name in _STORED:
            setattr(self, name, getattr(stored, name))
        self._is_uncertain = False
        log.info("ledger_reloaded", launches=len(self.records))

    async def check_owner(self) -> None:
        """Checks the ownership, and loads records whose state an outage made uncertain. Raises: Conflict when another
        service owns the ledger; this service must end."""
        try:
            await self._database.read(lambda session: check_owner_row(session, self._epoch))
            await self.change(lambda _: (Changes(), None))
        except Unavailable as problem:  # the owner is unknown; the next write checks it
            log.warning("ownership_not_checked", problem=str(problem))

    async def reply(self, key: str) -> Reply | None:
        """Returns the stored reply for a key."""
        row = await self._database.read(lambda session: session.get(ReplyRow, key))
        return rows.reply(row) if row is not None else None

    async def launch(self, launch_id: str) -> LaunchRecord | None:
        """Returns a launch of any age; None for an id that is not of this ledger."""
        known = self.records.get(LaunchId.unchecked(launch_id))
        if known is not None:
            return known
        row = await self._database.write(lambda session: session.get(InstanceRow, launch_id))
        return rows.record(row) if row is not None else None

    async def instances(
        self, *, pool: str, with_gone: bool, before: str, limit: int
    ) -> tuple[tuple[LaunchRecord, ...], bool]:
        """Returns launches, newest first, and whether older ones exist. before: launch id; empty for the newest."""
        query = select(InstanceRow).order_by(col(InstanceRow.id).desc()).limit(limit + 1)
        query = query.where(InstanceRow.pool == pool) if pool else query
        query = query.where(InstanceRow.id < before) if before else query
        query = query if with_gone else query.where(InstanceRow.state != InstanceState.GONE.value)
        instance_rows = await self._database.read(lambda session: session.exec(query).all())
        return tuple(rows.record(row) for row in instance_rows[:limit]), len(instance_rows) > limit

    async def decisions(
        self, *, pool: str, before: int | None, limit: int, kinds: Collection[RecordKind] = ()
    ) -> tuple[tuple[Decision, ...], bool]:
        """Returns decisions, newest first, and whether older ones exist. kinds: only these; empty for all."""
        query = select(DecisionRow).order_by(col(DecisionRow.ordinal).desc()).limit(limit + 1)
        query = query.where(DecisionRow.pool == pool) if pool else query
        query = query.where(col(DecisionRow.kind).in_([kind.value for kind in kinds])) if kinds else query
        query = query.where(DecisionRow.ordinal < before) if before is not None else query
        decision_rows = await self._database.read(lambda session: session.exec(query).all())
        return tuple(rows.decision(row) for row in decision_rows[:limit]), len(decision_rows) > limit

    async def proposal(self, plan: PlanId) -> Proposal | None:
        """Returns the stored proposal of a plan, also a decided one; None when the plan was not proposed."""
        row = await self._database.read(lambda session: session.get(ProposalRow, plan))
        return rows.proposal(row) if row is not None else None

    async def proposals(self, *, before: str, limit: int) -> tuple[tuple[Proposal, ...], bool]:
        """Returns proposals, newest first, and whether older ones exist. before: plan id; empty for the newest."""
        query = select(ProposalRow).order_by(col(ProposalRow.plan).desc()).limit(limit + 1)
        query = query.where(ProposalRow.plan < before) if before else query
        proposal_rows = await self._database.read(lambda session: session.exec(query).all())
        return tuple(rows.proposal(row) for row in proposal_rows[:limit]), len(proposal_rows) > limit

    def _load(self, session: Session, now: float) -> None:
        owner = session.get(OwnerRow, 1)
        self.identity = owner.identity if owner is not None else ""
        self.pools = {pool.spec.id: pool for pool in map(rows.pool, session.exec(select(PoolRow)).all())}
        recent = col(InstanceRow.gone_at).is_(None) | (col(InstanceRow.gone_at) > now - MEMORY_WINDOW_S)
        records = map(rows.record, session.exec(select(InstanceRow).where(recent)).all())
        self.records = {record.id: record for record in records}
        orphans = map(rows.orphan, session.exec(select(OrphanRow)).all())
        self.orphans = {(orphan.provider, orphan.handle): orphan for orphan in orphans}
        switch = session.get(SwitchRow, 1)
        self.switch = rows.switch(switch) if switch is not None else KillSwitch()
        row = session.get(MaintainerRow, 1)
        self.maintainer_setting = rows.setting(row) if row is not None else None
        undecided = select(ProposalRow).where(ProposalRow.state == ProposalState.WAITING.value)
        self.waiting_proposals = {
            proposal.plan.id: proposal for proposal in map(rows.proposal, session.exec(undecided).all())
        }
        refused = select(ProposalRow).where(
            ProposalRow.state == ProposalState.REJECTED.value, col(ProposalRow.decided_at) > now - REJECTED_S
        )
        self.rejected_proposals = {
            proposal.plan.id: proposal for proposal in map(rows.proposal, session.exec(refused).all())
        }
        self.next_decision = (session.exec(select(func.max(DecisionRow.ordinal))).one() or 0) + 1

    def _update_memory(self, changes: "Changes") -> None:
        self.pools.update({pool.spec.id: pool for pool in changes.pools})
        self.records.update({record.id: record for record in changes.records})
        self.orphans.update({(orphan.provider, orphan.handle): orphan for orphan in changes.orphans})
        for key in changes.removed_orphans:
            self.orphans.pop(key, None)
        self.switch = changes.switch or self.switch
        self.maintainer_setting = changes.maintainer_setting or self.maintainer_setting
        for proposal in changes.proposals:
            self.waiting_proposals.pop(proposal.plan.id, None)
            if proposal.state is ProposalState.WAITING:
                self.waiting_proposals[proposal.plan.id] = proposal
            if proposal.state is ProposalState.REJECTED:
                self._reject(proposal)
        self.next_decision += len(changes.decisions)
        self._forget_long_gone(max((record.instance.gone_at or 0.0 for record in changes.records), default=0.0))

    def _reject(self, proposal: Proposal) -> None:
        since = (proposal.decided_at or 0.0) - REJECTED_S
        self.rejected_proposals = {
            key: rejected for key, rejected in self.rejected_proposals.items() if (rejected.decided_at or 0.0) > since
        }
        self.rejected_proposals[proposal.plan.id] = proposal

    def _forget_long_gone(self, now: float) -> None:
        expired = [
            key for key, record in self.records.items() if (record.instance.gone_at or now) < now - MEMORY_WINDOW_S
        ]
        for key in expired:
            del self.records[key]


class Changes:
    """Changes that are written in one transaction."""

    def __init__(
        self,
        *,
        pools: tuple[PoolRecord, ...] = (),
        records: tuple[LaunchRecord, ...] = (),
        decisions: tuple[Decision, ...] = (),
        orphans: tuple[Orphan, ...] = (),
        forgotten: tuple[tuple[str, str], ...] = (),
        switch: KillSwitch | None = None,
        maintainer_setting: MaintainerSetting | None = None,
        proposals: tuple[Proposal, ...] = (),
        reply: Reply | None = None,
    ) -> None:
        self.pools = pools
        self.records = records
        self.decisions = decisions
        self.orphans = orphans
        self.removed_orphans = forgotten
        self.switch = switch
        self.maintainer_setting = maintainer_setting
        self.proposals = proposals
        self.reply = reply
        self.epoch: int | None = None
        """Epoch of the writer; None: the owner is not checked."""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def write(self, session: Session) -> None:
        """Writes the changes in the session's transaction. Raises: Conflict when another service has taken over."""
        check_owner_row(session, self.epoch)
        for pool in self.pools:
            session.merge(rows.pool_row(pool))
        for record in self.records:
            session.merge(rows.record_row(record))
        session.add_all([rows.decision_row(decision) for decision in self.decisions])
        for orphan in self.orphans:
            session.merge(rows.orphan_row(orphan))
        for provider, handle in self.removed_orphans:
            session.exec(delete(OrphanRow).where(col(OrphanRow.provider) == provider, col(OrphanRow.handle) == handle))
        if self.switch is not None:
            session.merge(rows.switch_row(self.switch))
        if self.maintainer_setting is not None:
            session.merge(rows.setting_row(self.maintainer_setting))
        for proposal in self.proposals:
            session.merge(rows.proposal_row(proposal))
        if self.reply is not None:
            session.add(rows.reply_row(self.reply))


def open_ledger(directory: Path, url: str = "") -> Database:
    """Opens the ledger's database: SQLite in `directory`, or the database at `url`.

    Raises: InvalidInput when it cannot be used, Unavailable when its server cannot be reached.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InvalidInput(
            f"cannot use the directory {str(directory)!r}: {problem.strerror}; give a writable directory",
            code="ledger.directory_unusable",
        ) from None
    engine = open_database(
        url or f"sqlite:///{directory / 'fleet.sqlite'}",
        migrations=Path(__file__).parent / "migrations",
        repair_hint="free disk space or correct its permissions; do not delete it while its instances run",
        is_synced=True,
    )
    return Database(engine)


def counts(records: tuple[LaunchRecord, ...]) -> Mapping[InstanceState, int]:
    """Returns the number of instances by state, without empty states."""
    states = [record.instance.state for record in records]
    return {state: states.count(state) for state in InstanceState if state in states}
