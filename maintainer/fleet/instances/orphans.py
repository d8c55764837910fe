"""Orphans: listed instances without a live launch in the ledger. They are adopted, kept and reported, or terminated."""

import asyncio
from collections.abc import Mapping, Sequence

from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.report import NodeState
from astraflow.contract.values import Value, Values
from astraflow.runtime.logs import get_logger
from maintainer.fleet.ledger.ledger import Changes
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from maintainer.fleet.ledger.records import Orphan
from maintainer.fleet.providers.base import Handle, Instance, Provider, ProviderError, State, is_unread
from maintainer.fleet.state.fleet import FLEET_ACTOR, FleetState
from maintainer.fleet.state.fleet_records import FleetRecords

log = get_logger()


class Orphans:
    """Watches the orphans of all providers."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self._kept: dict[str, dict[str, tuple[str, str]]] = {}
        """Cause and owner of an orphan that is not terminated, by provider and handle, in the latest sweep."""

    def problems(self) -> Mapping[str, Record]:
        """Returns the orphans of each provider that are kept for the same reason, by key."""
        problems: dict[str, Record] = {}
        for name, reasons in sorted(self._kept.items()):
            for reason in sorted(set(reasons.values())):
                handles = sorted(handle for handle, known in reasons.items() if known == reason)
                cause, owner = reason
                values: dict[str, Value] = {
                    "orphans": len(handles),
                    "handle": handles[0],
                    "cluster": self._fleet.cluster,
                }
                values |= {"owner": owner} if owner else {}
                problems[f"{cause} at {name} {owner}".strip()] = problem_record(cause, "", provider=name, **values)
        return problems

    async def watch(
        self, name: str, provider: Provider, listed: Sequence[Instance], unread: Mapping[str, ProviderError]
    ) -> None:
        """Tracks listed instances without a live launch, and terminates them after the quarantine."""
        fleet, now = self._fleet, self._fleet.clock.wall()
        alive = {record.id for record in fleet.ledger.alive()}
        orphaned = {
            instance.handle.id: instance
            for instance in listed
            if LaunchId.unchecked(instance.handle.launch_id) not in alive
        }
        new_orphans = tuple(
            Orphan(provider=name, handle=handle, launch_id=instance.handle.launch_id, seen_at=now)
            for handle, instance in orphaned.items()
            if (name, handle) not in fleet.ledger.orphans
        )
        removed = tuple(
            key
            for key, orphan in fleet.ledger.orphans.items()
            if key[0] == name
            and key[1] not in orphaned
            and not is_unread(unread, handle=orphan.handle, launch_id=orphan.launch_id)
        )
        if new_orphans or removed:
            await fleet.ledger.change(lambda _: (Changes(orphans=new_orphans, forgotten=removed), None))
        for orphan in new_orphans:
            log.warning("orphan_found", provider=name, handle=orphan.handle, launch=orphan.launch_id)
        if fleet.kill is KillScope.ALL:
            return
        kept = self._kept[name] = {}
        for handle, instance in orphaned.items():
            seen_for_s = fleet.stored_times.age_s(fleet.ledger.orphans[name, handle].seen_at)
            if await self._adopt(instance) or seen_for_s < fleet.config.times.quarantine_s:
                continue
            cause, owner = await self._cause_to_keep(instance)
            if cause:
                kept[handle] = cause, owner
            else:
                await self._end_orphan(provider, instance, seen_for_s=seen_for_s)

    async def _adopt(self, orphan: Instance) -> bool:
        """Returns an instance that was recorded as gone to the pool if its node is ready."""
        fleet = self._fleet
        record = fleet.ledger.records.get(LaunchId.unchecked(orphan.handle.launch_id))
        node = fleet.observation.node(orphan.handle.launch_id)
        is_ready = node is not None and node.state is NodeState.READY and fleet.observation.is_alive(node.facts.name)
        if record is None or not is_ready or orphan.state is not State.RUNNING:
            return False
        await self._records.record_event(
            record.id,
            InstanceEvent.ADOPTED,
            message="adopted: the provider lists the instance again, and its node works",
            handle=orphan.handle.id,
            missed=0,
            is_drain_requested=False,
        )
        await self._record_orphan(record.instance.pool, "orphan_adopted", {"launch": record.id})
        return True

    async def _cause_to_keep(self, orphan: Instance) -> tuple[str, str]:
        """Returns why an orphan must not be terminated, and its owner; empty for one of this fleet without a working
        node."""
        fleet, launch_id, tags = self._fleet, orphan.handle.launch_id, orphan.tags
        is_own = tags is not None and tags.run == fleet.run
        if not is_own and await fleet.ledger.launch(launch_id) is None:
            run = f"run {tags.run!r}" if tags is not None else "another fleet"
            return "orphans_of_another_fleet", run
        if fleet.observation.is_alive(launch_id):
            return "orphans_at_work", ""
        if not fleet.observation.is_silent(launch_id, for_s=fleet.config.times.lost_after_s):
            return "orphans_unobserved", ""
        return "", ""

    async def _end_orphan(self, provider: Provider, orphan: Instance, *, seen_for_s: float) -> None:
        """Terminates an orphan, at each sweep until it is not listed; recorded once in the audit log."""
        await self.retire(provider, orphan.handle.launch_id)
        if orphan.state is State.TERMINATING:
            return
        pool = orphan.tags.pool if orphan.tags is not None else ""
        values: Values = {
            "handle": orphan.handle.id,
            "launch": orphan.handle.launch_id,
            "orphaned_s": round(seen_for_s),
        }
        await self._record_orphan(pool, "orphan_terminated", values)

    async def _record_orphan(self, pool: str, cause: str, values: Values) -> None:
        await self._records.add_decision(RecordKind.ORPHAN, values, pool=pool, actor=FLEET_ACTOR, cause=cause)

    async def retire(self, provider: Provider, launch_id: str, *, keep: Handle | None = None) -> None:
        """Requests a termination. Raises: TimeoutError, so that a hanging provider delays no other sweep."""
        async with asyncio.timeout(self._fleet.config.times.call_timeout_s):
            await provider.retire(launch_id, keep=keep)
