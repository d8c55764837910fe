"""Compares the ledger with what providers list and what dataflow sees, and mends what differs.

listed, not in the ledger   watched for a while, then ended: nothing with our tag costs money unknown to us
in the ledger, not listed   gone after two lists without it
two under one launch id     the registered one stays
on its way out for long     asked again, and people are told
suspect for long            drained, and replaced

Absence of an answer is no answer: a provider that cannot be read, or a dataflow that is silent, changes nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from astraflow.contract.causes import Cause
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import InstanceState, KillScope, LaunchId
from astraflow.contract.reports import NodeReport, NodeState
from astraflow.runtime.logs import get_logger
from maintainer.fleet.fleet import ITSELF, Fleet
from maintainer.fleet.ledger import Changes, Ledger
from maintainer.fleet.lifecycle import STARTING, Sight
from maintainer.fleet.providers.base import Instance, Provider, State
from maintainer.fleet.records import Orphan, Record

log = get_logger()

MISSES = 2
"""Lists in a row that an instance must be absent from."""

_SIGHTS = {
    State.PENDING: Sight.PENDING,
    State.STUCK: Sight.RETIRE,
    State.RUNNING: Sight.RUNNING,
    State.GOING: Sight.GOING,
    State.GONE: Sight.GONE,
}


class Reconciler:
    """One for the service."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.last_sweep_at: float | None = None
        """Unix seconds of the latest in which every provider answered."""
        self._unread: dict[str, str] = {}
        """What kept each provider from being read last time."""

    def troubles(self) -> Mapping[str, str]:
        """What people should know, by what it is about."""
        fleet, now = self._fleet, self._fleet.clock.wall()
        found = {
            f"provider {name}": f"provider {name} cannot be read: {problem}"
            for name, problem in sorted(self._unread.items())
        }
        for record in fleet.ledger.alive():
            since = record.instance.retiring_at
            if since is not None and now - since > fleet.config.times.going_s:
                found[f"end of {record.id}"] = (
                    f"{record.id} does not end, asked for {now - since:.0f} s: look at {record.instance.handle}"
                )
            if record.instance.provider not in fleet.providers:
                found[f"provider of {record.id}"] = (
                    f"{record.id} is of provider {record.instance.provider!r}, which is not configured any more"
                )
        return found

    async def sweep(self) -> None:
        """Once, over every provider. One that fails is told of and left for the next time."""
        for name, provider in self._fleet.providers.items():
            try:
                await self._sweep(name, provider)
            except (AstraFlowError, TimeoutError) as problem:
                self._fail(name, str(problem) or "no answer in time")
            except Exception as problem:  # a defect of a provider must not stop the others
                log.exception("sweep_failed", provider=name)
                self._fail(name, repr(problem))
            else:
                self._unread.pop(name, None)
        if not self._unread:
            self.last_sweep_at = self._fleet.clock.wall()

    async def observe(self) -> None:
        """What dataflow says of nodes, and what has become too old."""
        fleet = self._fleet
        for record in fleet.ledger.alive():
            if fleet.observation.is_fresh:
                await self._look_at_node(record)
                await self._give_up_if_late(record)
            await self._give_up_if_suspect(record)
            if fleet.clock.wall() > record.instance.expires_at and record.instance.state is InstanceState.READY:
                await fleet.see(record.id, Sight.DRAIN, cause=Cause.EXPIRED, message="it is as old as machines may get")
        await self._hear_of_the_lost()

    async def _sweep(self, name: str, provider: Provider) -> None:
        began = self._fleet.clock.wall()
        async with asyncio.timeout(self._fleet.config.times.call_s):
            listed = await provider.list(self._fleet.config.cluster)
        by_launch: dict[str, list[Instance]] = defaultdict(list)
        for instance in listed:
            by_launch[instance.handle.launch_id].append(instance)
        for record in self._fleet.ledger.alive():
            if record.instance.provider == name:
                settled_before = began - provider.capabilities().listing_lag_s
                await self._compare(record, by_launch.get(record.id, []), provider, settled_before)
        await self._watch_orphans(name, provider, [one for one in listed if one.state is not State.GONE])

    async def _compare(
        self, record: Record, listed: Sequence[Instance], provider: Provider, settled_before: float
    ) -> None:
        """One launch of the ledger with what is listed under its id."""
        known = record.instance.handle
        there = sorted((one for one in listed if one.state is not State.GONE), key=lambda one: one.created_at)
        own = next((one for one in listed if one.handle.id == known), None)
        if own is None and there:
            own = there[0]  # the answer to its launch was lost, or what was registered is gone and another stands here
        if own is not None:
            await self._register(record, own)
            if len(there) > 1 and self._fleet.kill is not KillScope.ALL:
                log.warning("duplicate", launch=record.id, kept=own.handle.id, instances=len(there))
                await provider.retire(record.id, keep=own.handle)
        elif record.instance.launched_at is not None and record.instance.launched_at < settled_before:
            await self._miss(record)

    async def _register(self, record: Record, own: Instance) -> None:
        """Nothing may be known of it yet: the answer to its launch was lost."""
        message = own.message if own.message and own.state in (State.STUCK, State.GOING, State.GONE) else None
        told = Cause.TAKEN if own.notice_at is not None else None  # also where its end is all that this look finds
        seen = await self._fleet.see(
            record.id, _SIGHTS[own.state], cause=told, message=message, handle=own.handle.id, missed=0
        )
        if seen is not None and seen.instance.state is InstanceState.SUSPECT:
            log.warning("suspect", launch=record.id, was=record.instance.state.value, seen=own.state.value)

    async def _miss(self, record: Record) -> None:
        if record.missed + 1 >= MISSES:
            await self._fleet.see(record.id, Sight.MISSING, message="its provider does not know it any more")
            return

        def decide(ledger: Ledger) -> tuple[Changes, None]:
            known = ledger.records[record.id]
            return Changes(records=(replace(known, missed=known.missed + 1),)), None

        await self._fleet.ledger.change(decide)

    async def _watch_orphans(self, name: str, provider: Provider, listed: Sequence[Instance]) -> None:
        """What is listed and lives, but stands for no living launch."""
        fleet, now = self._fleet, self._fleet.clock.wall()
        alive = {record.id for record in fleet.ledger.alive()}
        strays = {one.handle.id: one for one in listed if LaunchId.known(one.handle.launch_id) not in alive}
        fresh = tuple(
            Orphan(provider=name, handle=handle, launch_id=one.handle.launch_id, seen_at=now)
            for handle, one in strays.items()
            if (name, handle) not in fleet.ledger.orphans
        )
        over = tuple(key for key in fleet.ledger.orphans if key[0] == name and key[1] not in strays)
        if fresh or over:
            await fleet.ledger.change(lambda _: (Changes(orphans=fresh, forgotten=over), None))
        for orphan in fresh:
            log.warning("orphan", provider=name, handle=orphan.handle, launch=orphan.launch_id)
        if fleet.kill is KillScope.ALL:
            return
        for handle, one in strays.items():
            seen_at = fleet.ledger.orphans[name, handle].seen_at
            if now - seen_at >= fleet.config.times.quarantine_s:
                await self._end_orphan(provider, one, seen_for_s=now - seen_at)

    async def _end_orphan(self, provider: Provider, orphan: Instance, *, seen_for_s: float) -> None:
        """Asked at each sweep until it is not listed any more; written down the first time it was asked."""
        fleet = self._fleet
        await provider.retire(orphan.handle.launch_id)
        if orphan.state is State.GOING:
            return
        pool = orphan.tags.pool if orphan.tags is not None else ""
        message = f"{orphan.handle.id} was ended: the ledger has no living launch {orphan.handle.launch_id}"
        reason = f"an orphan for {seen_for_s:.0f} s"

        def decide(_: Ledger) -> tuple[Changes, None]:
            decision = fleet.decision("orphan", pool=pool, actor=ITSELF, reason=reason, message=message)
            return Changes(decisions=(decision,)), None

        await fleet.ledger.change(decide)

    async def _look_at_node(self, record: Record) -> None:
        fleet, node = self._fleet, self._fleet.observation.node(record.id)
        if node is not None and node.state is NodeState.READY:
            if record.instance.ready_at is None or record.instance.state is not InstanceState.READY:
                await fleet.see(record.id, Sight.NODE_READY)
        elif node is not None and node.state is NodeState.LOST:
            if node.beat_age_s > fleet.config.times.lost_s:
                await fleet.see(record.id, Sight.NODE_LEFT, message="dataflow does not hear its node any more")
        elif record.instance.state is InstanceState.READY:
            await self._look_at_leaving(record, node)

    async def _look_at_leaving(self, record: Record, node: NodeReport | None) -> None:
        """What is on its machine hears of a notice first: where clouds tell nobody else, it is the only one."""
        fleet, cause = self._fleet, self._fleet.observation.cause(record.id)
        if node is None:
            await fleet.see(record.id, Sight.NODE_LEFT, cause=cause, message="its node has left")
        elif node.state is NodeState.DRAINING and cause is Cause.TAKEN:
            await fleet.see(record.id, Sight.GOING, message="its node was told that the machine is taken away")

    async def _hear_of_the_lost(self) -> None:
        """What a node said before its end may be heard after its provider has told of that end."""
        fleet = self._fleet
        for record in tuple(fleet.ledger.records.values()):
            if record.instance.cause is Cause.LOST and fleet.observation.cause(record.id) is Cause.TAKEN:
                await fleet.see(record.id, Sight.NODE_LEFT, cause=Cause.TAKEN)

    async def _give_up_if_late(self, record: Record) -> None:
        """A machine whose node does not come costs money for nothing."""
        fleet = self._fleet
        if record.instance.state not in STARTING or record.instance.launched_at is None:
            return
        pool = fleet.ledger.pools[record.instance.pool]
        patience_s = min(fleet.config.times.starting_s, max(60.0, 2 * fleet.launch_delay_s(pool.spec)))
        if fleet.clock.wall() - record.instance.launched_at > patience_s:
            message = f"its node did not work within {patience_s:.0f} s"
            await fleet.see(record.id, Sight.RETIRE, message=message)

    async def _give_up_if_suspect(self, record: Record) -> None:
        """It may work or not, and costs: its node finishes if there is one, and then it goes."""
        fleet, since = self._fleet, record.suspect_at
        if since is not None and fleet.clock.wall() - since > fleet.config.times.suspect_s:
            message = f"what is seen of it has not fit for {fleet.clock.wall() - since:.0f} s"
            await fleet.see(record.id, Sight.DRAIN, cause=Cause.UNCLEAR, message=message)

    def _fail(self, name: str, problem: str) -> None:
        if self._unread.get(name) != problem:
            log.warning("provider_not_readable", provider=name, problem=problem)
        self._unread[name] = problem
