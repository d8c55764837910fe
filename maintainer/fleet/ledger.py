"""What the fleet service knows, durable before it acts: intents, instances, orphans, and the journal of who did what.

One process owns a ledger. What lives is in memory too; every change is one transaction, and is seen once it is kept.
"""

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import func
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, col, delete, select

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.fleet import Decision, InstanceState, LaunchId, PlanId
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import Proposal, ProposalState
from astraflow.runtime.database import Database, opened
from astraflow.runtime.logs import get_logger
from maintainer.fleet import rows
from maintainer.fleet.records import MaintainerOrder, Orphan, PoolRecord, Record, Reply, Switch
from maintainer.fleet.tables import (
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
"""How long a person's no is remembered at most."""
SPENT_S = 26 * 3600.0
"""What has been gone for longer costs nothing today, in any time zone: it is not kept in memory."""


class Ledger:
    """Pools, launches and the rest, by id. Reads are of memory; `change` is the only way to write."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self.pools: dict[PoolId, PoolRecord] = {}
        self.records: dict[LaunchId, Record] = {}
        """All that are not gone, and those that went within a day."""
        self.orphans: dict[tuple[str, str], Orphan] = {}
        """By provider and handle."""
        self.switch = Switch()
        self.order: MaintainerOrder | None = None
        """None until people have told the maintainer anything."""
        self.waiting: dict[PlanId, Proposal] = {}
        """Proposals that nobody has decided on."""
        self.rejected: dict[PlanId, Proposal] = {}
        """Those that people said no to within a day."""
        self.next_decision = 1
        self._epoch: int | None = None

    async def own(self) -> None:
        """Write from now on; whoever did before is refused from then on. Without it nobody is refused."""
        place = f"{socket.gethostname()} {os.getpid()}"
        self._epoch = await self._database.do(lambda session: _next_epoch(session, place))

    async def load(self, *, now: float) -> Self:
        """Read what is kept."""
        await self._database.do(lambda session: self._load(session, now))
        return self

    def alive(self, pool: PoolId | None = None) -> tuple[Record, ...]:
        """Launches that are not gone."""
        return tuple(
            record
            for record in self.records.values()
            if record.instance.state is not InstanceState.GONE and pool in (None, record.instance.pool)
        )

    def of_pool(self, pool: PoolId) -> tuple[Record, ...]:
        """Launches of a pool, those that went within a day too."""
        return tuple(record for record in self.records.values() if record.instance.pool == pool)

    async def change(self, decide: Callable[["Ledger"], tuple["Changes", T]]) -> T:
        """Have `decide` look at the ledger and say what is to be written; write it in one transaction, then show it.

        Nobody else writes in between, so what `decide` saw is what it changes: compare-and-set is a check in it. A
        caller that gives up in the meantime changes nothing about that: memory always shows what is kept.
        """
        return await asyncio.shield(asyncio.create_task(self._change(decide)))

    async def _change(self, decide: Callable[["Ledger"], tuple["Changes", T]]) -> T:
        async with self._lock:
            changes, result = decide(self)
            if changes:
                changes.epoch = self._epoch
                await self._database.do(changes.write)
                self._show(changes)
            return result

    async def check_owner(self) -> None:
        """Raises: Conflict when another service has taken the ledger over: this one should end."""
        try:
            await self._database.look(lambda session: _check_owner(session, self._epoch))
        except OperationalError as problem:  # nobody knows; a write will find out
            log.warning("owner_not_known", problem=str(problem.orig))

    async def reply(self, key: str) -> Reply | None:
        """What was answered under a key."""
        row = await self._database.do(lambda session: session.get(ReplyRow, key))
        return rows.reply(row) if row is not None else None

    async def instances(
        self, *, pool: str, with_gone: bool, before: str, limit: int
    ) -> tuple[tuple[Record, ...], bool]:
        """Newest first, and whether there are older ones. before: an id; empty for the newest."""
        query = select(InstanceRow).order_by(col(InstanceRow.id).desc()).limit(limit + 1)
        query = query.where(InstanceRow.pool == pool) if pool else query
        query = query.where(InstanceRow.id < before) if before else query
        query = query if with_gone else query.where(InstanceRow.state != InstanceState.GONE.value)
        found = await self._database.do(lambda session: session.exec(query).all())
        return tuple(rows.record(row) for row in found[:limit]), len(found) > limit

    async def decisions(self, *, pool: str, before: int | None, limit: int) -> tuple[tuple[Decision, ...], bool]:
        """Newest first, and whether there are older ones."""
        query = select(DecisionRow).order_by(col(DecisionRow.ordinal).desc()).limit(limit + 1)
        query = query.where(DecisionRow.pool == pool) if pool else query
        query = query.where(DecisionRow.ordinal < before) if before is not None else query
        found = await self._database.do(lambda session: session.exec(query).all())
        return tuple(rows.decision(row) for row in found[:limit]), len(found) > limit

    async def proposals(self, *, before: str, limit: int) -> tuple[tuple[Proposal, ...], bool]:
        """Newest first, and whether there are older ones. before: a plan's id; empty for the newest."""
        query = select(ProposalRow).order_by(col(ProposalRow.plan).desc()).limit(limit + 1)
        query = query.where(ProposalRow.plan < before) if before else query
        found = await self._database.do(lambda session: session.exec(query).all())
        return tuple(rows.proposal(row) for row in found[:limit]), len(found) > limit

    def _load(self, session: Session, now: float) -> None:
        self.pools = {pool.spec.id: pool for pool in map(rows.pool, session.exec(select(PoolRow)).all())}
        recent = col(InstanceRow.gone_at).is_(None) | (col(InstanceRow.gone_at) > now - SPENT_S)
        records = map(rows.record, session.exec(select(InstanceRow).where(recent)).all())
        self.records = {record.id: record for record in records}
        orphans = map(rows.orphan, session.exec(select(OrphanRow)).all())
        self.orphans = {(orphan.provider, orphan.handle): orphan for orphan in orphans}
        switch = session.get(SwitchRow, 1)
        self.switch = rows.switch(switch) if switch is not None else Switch()
        order = session.get(MaintainerRow, 1)
        self.order = rows.order(order) if order is not None else None
        undecided = select(ProposalRow).where(ProposalRow.state == ProposalState.WAITING.value)
        self.waiting = {proposal.plan.id: proposal for proposal in map(rows.proposal, session.exec(undecided).all())}
        refused = select(ProposalRow).where(
            ProposalRow.state == ProposalState.REJECTED.value, col(ProposalRow.decided_at) > now - REJECTED_S
        )
        self.rejected = {proposal.plan.id: proposal for proposal in map(rows.proposal, session.exec(refused).all())}
        self.next_decision = (session.exec(select(func.max(DecisionRow.ordinal))).one() or 0) + 1

    def _show(self, changes: "Changes") -> None:
        self.pools.update({pool.spec.id: pool for pool in changes.pools})
        self.records.update({record.id: record for record in changes.records})
        self.orphans.update({(orphan.provider, orphan.handle): orphan for orphan in changes.orphans})
        for key in changes.forgotten:
            self.orphans.pop(key, None)
        self.switch = changes.switch or self.switch
        self.order = changes.order or self.order
        for proposal in changes.proposals:
            self.waiting.pop(proposal.plan.id, None)
            if proposal.state is ProposalState.WAITING:
                self.waiting[proposal.plan.id] = proposal
            if proposal.state is ProposalState.REJECTED:
                self._reject(proposal)
        self.next_decision += len(changes.decisions)
        self._forget_long_gone(max((record.instance.gone_at or 0.0 for record in changes.records), default=0.0))

    def _reject(self, proposal: Proposal) -> None:
        since = (proposal.decided_at or 0.0) - REJECTED_S
        self.rejected = {key: one for key, one in self.rejected.items() if (one.decided_at or 0.0) > since}
        self.rejected[proposal.plan.id] = proposal

    def _forget_long_gone(self, now: float) -> None:
        old = [key for key, record in self.records.items() if (record.instance.gone_at or now) < now - SPENT_S]
        for key in old:
            del self.records[key]


class Changes:
    """What is written together."""

    def __init__(
        self,
        *,
        pools: tuple[PoolRecord, ...] = (),
        records: tuple[Record, ...] = (),
        decisions: tuple[Decision, ...] = (),
        orphans: tuple[Orphan, ...] = (),
        forgotten: tuple[tuple[str, str], ...] = (),
        switch: Switch | None = None,
        order: MaintainerOrder | None = None,
        proposals: tuple[Proposal, ...] = (),
        reply: Reply | None = None,
    ) -> None:
        self.pools = pools
        self.records = records
        self.decisions = decisions
        self.orphans = orphans
        self.forgotten = forgotten
        self.switch = switch
        self.order = order
        self.proposals = proposals
        self.reply = reply
        self.epoch: int | None = None
        """Of whoever writes; None for not to look."""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def write(self, session: Session) -> None:
        """In the session's transaction. Raises: Conflict when another service has taken the ledger over."""
        _check_owner(session, self.epoch)
        for pool in self.pools:
            session.merge(rows.pool_row(pool))
        for record in self.records:
            session.merge(rows.record_row(record))
        session.add_all([rows.decision_row(decision) for decision in self.decisions])
        for orphan in self.orphans:
            session.merge(rows.orphan_row(orphan))
        for provider, handle in self.forgotten:
            session.exec(delete(OrphanRow).where(col(OrphanRow.provider) == provider, col(OrphanRow.handle) == handle))
        if self.switch is not None:
            session.merge(rows.switch_row(self.switch))
        if self.order is not None:
            session.merge(rows.order_row(self.order))
        for proposal in self.proposals:
            session.merge(rows.proposal_row(proposal))
        if self.reply is not None:
            session.add(rows.reply_row(self.reply))


def _next_epoch(session: Session, place: str) -> int:
    owner = session.get(OwnerRow, 1, with_for_update=True)
    epoch = 1 if owner is None else owner.epoch + 1
    session.merge(OwnerRow(id=1, epoch=epoch, place=place))
    return epoch


def _check_owner(session: Session, epoch: int | None) -> None:
    """The row stays locked to the end of the transaction: nobody takes over in the middle of it."""
    if epoch is None:
        return
    owner = session.get(OwnerRow, 1, with_for_update=True)
    if owner is None or owner.epoch != epoch:
        other = owner.place if owner is not None else "somebody who emptied it"
        raise Conflict(f"the fleet's ledger is now {other}'s: one service writes it at a time, and this one ends")


class Ownership:
    """Only one process on this machine uses a directory's ledger. A `with`; gone with its process.

    A ledger in a database that several machines reach is taken over by whoever starts last (`Ledger.own`).
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "fleet.lock"
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise Conflict(
                f"another fleet service uses {self._path.parent}: stop it, or give another directory"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def open_ledger(directory: Path, url: str = "") -> Database:
    """The ledger's database: SQLite in `directory`, or what `url` names.

    Raises: InvalidInput when it cannot be used.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InvalidInput(f"the directory {directory} cannot be used: {problem.strerror}") from None
    engine = opened(
        url or f"sqlite:///{directory / 'fleet.sqlite'}",
        migrations=Path(__file__).parent / "migrations",
        if_broken="free space or mend its permissions; do not delete it while it stands for machines that run",
        is_synced=True,
    )
    return Database(engine)


def counts(records: tuple[Record, ...]) -> Mapping[InstanceState, int]:
    """Instances in each state that any is in."""
    states = [record.instance.state for record in records]
    return {state: states.count(state) for state in InstanceState if state in states}
