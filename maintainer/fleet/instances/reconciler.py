"""Compares the ledger with the providers' lists and with dataflow's nodes, and corrects differences.

listed, not in the ledger   orphan: watched for a while, then terminated
in the ledger, not listed   gone after two lists without it
two under one launch id     the registered one stays, the other is terminated
terminating for long        requested again, and reported as a problem
suspect for long            drained, and replaced

A missing answer changes nothing: neither a provider, or one of its regions, that cannot be read nor a silent dataflow.
A node that is missing from the reports has left only after `times.lost_after_s`, because a restarted dataflow does not
know its nodes yet.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.instances import Cause, InstanceState, LaunchId
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.reports.report import NodeReport, NodeState
from astraflow.runtime.logs import get_logger
from maintainer.fleet.ledger.ledger import Changes, Ledger
from maintainer.fleet.ledger.lifecycle import STARTING_STATES, InstanceEvent
from maintainer.fleet.ledger.records import LaunchRecord, Orphan
from maintainer.fleet.providers.base import (
    Handle,
    Instance,
    Provider,
    ProviderError,
    State,
    is_unread,
    unread_places,
)
from maintainer.fleet.state.fleet import FLEET_ACTOR, Fleet

log = get_logger()

MISSED_LISTS = 2
"""Consecutive lists without an instance after which it is gone."""

_STATE_EVENTS = {
    State.PENDING: InstanceEvent.PENDING,
    State.STUCK: InstanceEvent.RETIRE,
    State.RUNNING: InstanceEvent.RUNNING,
    State.TERMINATING: InstanceEvent.PREEMPTING,
    State.GONE: InstanceEvent.GONE,
}


class Reconciler:
    """Reconciles ledger, providers and dataflow. One instance per service."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.last_sweep_at: float | None = None
        """Unix seconds of the latest sweep in which every provider answered; None before the first."""
        self._provider_problems: dict[str, str] = {}
        """Error of each provider that could not be read in the latest sweep."""

    def problems(self) -> Mapping[str, str]:
        """Returns problems that people should know of, by subject."""
        fleet, now = self._fleet, self._fleet.clock.wall()
        problems = {
            f"provider {name}": f"provider {name} cannot be read: {problem}"
            for name, problem in sorted(self._provider_problems.items())
        }
        for record in fleet.ledger.alive():
            since = record.instance.retiring_at
            if since is not None and now - since > fleet.config.times.terminate_timeout_s:
                problems[f"termination of {record.id}"] = (
                    f"instance {record.id} has not terminated for {now - since:.0f} s after the request; check "
                    f"{record.instance.handle} at the provider"
                )
            if record.instance.provider not in fleet.providers:
                problems[f"provider of {record.id}"] = (
                    f"instance {record.id} belongs to provider {record.instance.provider!r}, which is not configured"
                )
        return problems

    async def sweep(self) -> None:
        """Sweeps every provider once. A provider that fails is reported and retried at the next sweep."""
        for name, provider in self._fleet.providers.items():
            try:
                unread = await self._sweep(name, provider)
            except (AstraFlowError, TimeoutError) as problem:
                self._record_failure(name, str(problem) or "no answer in time")
            except Exception as problem:  # a provider's defect must not stop the sweep
                log.exception("sweep_failed", provider=name)
                self._record_failure(name, repr(problem))
            else:
                if unread:
                    self._record_failure(name, "; ".join(sorted({str(problem) for problem in unread.values()})))
                else:
                    self._provider_problems.pop(name, None)
        if not self._provider_problems:
            self.last_sweep_at = self._fleet.clock.wall()

    async def check_nodes(self) -> None:
        """Checks nodes in dataflow's report, late and suspect instances, and maximum ages."""
        fleet = self._fleet
        for record in fleet.ledger.alive():
            if fleet.observation.is_fresh:
                await self._check_node(record)
                await self._retire_if_late(record)
            await self._drain_if_suspect(record)
            if fleet.clock.wall() > record.instance.expires_at and record.instance.state is InstanceState.READY:
                await fleet.record_event(
                    record.id,
                    InstanceEvent.DRAIN,
                    cause=Cause.EXPIRED,
                    message="the instance has reached its maximum age",
                )
        await self._recheck_lost_instances()

    async def _sweep(self, name: str, provider: Provider) -> Mapping[str, ProviderError]:
        """Compares a provider's list with the ledger; returns what the list does not cover."""
        started_at = self._fleet.clock.wall()
        async with asyncio.timeout(self._fleet.config.times.call_timeout_s):
            listed = await provider.list(self._fleet.config.cluster)
        unread = unread_places(listed)
        by_launch: dict[str, list[Instance]] = defaultdict(list)
        for instance in listed:
            by_launch[instance.handle.launch_id].append(instance)
        for record in self._fleet.ledger.alive():
            handle = record.instance.handle
            if record.instance.provider == name and not is_unread(unread, handle=handle, launch_id=record.id):
                settled_before = started_at - provider.capabilities().listing_lag_s
                await self._compare(record, by_launch.get(record.id, []), provider, settled_before)
        alive = [instance for instance in listed if instance.state is not State.GONE]
        await self._watch_orphans(name, provider, alive, unread)
        return unread

    async def _compare(
        self, record: LaunchRecord, listed: Sequence[Instance], provider: Provider, settled_before: float
    ) -> None:
        """Compares a launch with the instances listed under its id."""
        recorded_handle = record.instance.handle
        alive = sorted(
            (instance for instance in listed if instance.state is not State.GONE),
            key=lambda instance: instance.created_at,
        )
        registered = next((instance for instance in listed if instance.handle.id == recorded_handle), None)
        if registered is None and alive:
            registered = alive[0]  # the answer to its launch was lost, or another instance replaced it
        if registered is not None:
            await self._register(record, registered)
            if len(alive) > 1 and self._fleet.kill is not KillScope.ALL:
                log.warning(
                    "duplicate_instance", launch=record.id, registered=registered.handle.id, instances=len(alive)
                )
                await self._retire(provider, record.id, keep=registered.handle)
        elif record.instance.launched_at is not None and record.instance.launched_at < settled_before:
            await self._count_missing(record)

    async def _register(self, record: LaunchRecord, listed: Instance) -> None:
        """Records an instance's state, and its handle if the answer to its launch was lost."""
        message = (
            listed.message if listed.message and listed.state in (State.STUCK, State.TERMINATING, State.GONE) else None
        )
        cause = Cause.PREEMPTED if listed.notice_at is not None else None  # also when the instance has ended already
        updated = await self._fleet.record_event(
            record.id, _STATE_EVENTS[listed.state], cause=cause, message=message, handle=listed.handle.id, missed=0
        )
        if updated is not None and updated.instance.state is InstanceState.SUSPECT:
            log.warning(
                "instance_suspect",
                launch=record.id,
                state=record.instance.state.value,
                provider_state=listed.state.value,
            )

    async def _count_missing(self, record: LaunchRecord) -> None:
        if record.missed + 1 >= MISSED_LISTS:
            await self._fleet.record_event(
                record.id, InstanceEvent.MISSING, message="the provider no longer lists the instance"
            )
            return

        def decide(ledger: Ledger) -> tuple[Changes, None]:
            current_record = ledger.records[record.id]
            return Changes(records=(replace(current_record, missed=current_record.missed + 1),)), None

        await self._fleet.ledger.change(decide)

    async def _watch_orphans(
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
        for handle, instance in orphaned.items():
            seen_at = fleet.ledger.orphans[name, handle].seen_at
            if now - seen_at >= fleet.config.times.quarantine_s:
                await self._end_orphan(provider, instance, seen_for_s=now - seen_at)

    async def _end_orphan(self, provider: Provider, orphan: Instance, *, seen_for_s: float) -> None:
        """Terminates an orphan, at each sweep until it is not listed; recorded once in the audit log."""
        fleet = self._fleet
        await self._retire(provider, orphan.handle.launch_id)
        if orphan.state is State.TERMINATING:
            return
        pool = orphan.tags.pool if orphan.tags is not None else ""
        message = f"orphan {orphan.handle.id} terminated: the ledger has no live launch {orphan.handle.launch_id}"
        reason = f"orphaned for {seen_for_s:.0f} s"

        def decide(_: Ledger) -> tuple[Changes, None]:
            decision = fleet.decision("orphan", pool=pool, actor=FLEET_ACTOR, reason=reason, message=message)
            return Changes(decisions=(decision,)), None

        await fleet.ledger.change(decide)

    async def _retire(self, provider: Provider, launch_id: str, *, keep: Handle | None = None) -> None:
        """Requests a termination. Raises: TimeoutError, so that a hanging provider delays no other sweep."""
        async with asyncio.timeout(self._fleet.config.times.call_timeout_s):
            await provider.retire(launch_id, keep=keep)

    async def _check_node(self, record: LaunchRecord) -> None:
        fleet, node = self._fleet, self._fleet.observation.node(record.id)
        if node is not None and node.state is NodeState.READY:
            if record.instance.ready_at is None or record.instance.state is not InstanceState.READY:
                await fleet.record_event(record.id, InstanceEvent.NODE_READY)
        elif node is not None and node.state is NodeState.LOST:
            if node.heartbeat_age_s > fleet.config.times.lost_after_s:
                await fleet.record_event(
                    record.id, InstanceEvent.NODE_LEFT, message="dataflow receives no heartbeats from the node"
                )
        elif record.instance.state is InstanceState.READY:
            await self._check_departed_node(record, node)

    async def _check_departed_node(self, record: LaunchRecord, node: NodeReport | None) -> None:
        """Handles a node that has left or has a preemption notice, which some clouds give to the instance alone."""
        fleet, cause = self._fleet, self._fleet.observation.cause(record.id)
        if fleet.observation.has_left(record.id, missing_for_s=fleet.config.times.lost_after_s):
            await fleet.record_event(record.id, InstanceEvent.NODE_LEFT, cause=cause, message="the node has left")
        elif node is not None and node.state is NodeState.DRAINING and cause is Cause.PREEMPTED:
            await fleet.record_event(record.id, InstanceEvent.PREEMPTING, message="the node got a preemption notice")

    async def _recheck_lost_instances(self) -> None:
        """Corrects the cause of lost instances whose nodes reported a preemption notice before their end."""
        fleet = self._fleet
        for record in tuple(fleet.ledger.records.values()):
            if record.instance.cause is Cause.LOST and fleet.observation.cause(record.id) is Cause.PREEMPTED:
                await fleet.record_event(record.id, InstanceEvent.NODE_LEFT, cause=Cause.PREEMPTED)

    async def _retire_if_late(self, record: LaunchRecord) -> None:
        """Retires an instance whose node is not ready in time."""
        fleet = self._fleet
        if record.instance.state not in STARTING_STATES or record.instance.launched_at is None:
            return
        pool = fleet.ledger.pools[record.instance.pool]
        ready_timeout_s = min(fleet.config.times.start_timeout_s, max(60.0, 2 * fleet.launch_delay_s(pool.spec)))
        if fleet.clock.wall() - record.instance.launched_at > ready_timeout_s:
            message = f"the node was not ready within {ready_timeout_s:.0f} s"
            await fleet.record_event(record.id, InstanceEvent.RETIRE, message=message)

    async def _drain_if_suspect(self, record: LaunchRecord) -> None:
        """Drains an instance that has been SUSPECT for too long."""
        fleet, since = self._fleet, record.suspect_at
        if since is not None and fleet.clock.wall() - since > fleet.config.times.suspect_timeout_s:
            message = f"the instance was in an inconsistent state for {fleet.clock.wall() - since:.0f} s"
            await fleet.record_event(record.id, InstanceEvent.DRAIN, cause=Cause.INCONSISTENT, message=message)

    def _record_failure(self, name: str, problem: str) -> None:
        if self._provider_problems.get(name) != problem:
            log.warning("provider_unreadable", provider=name, problem=problem)
        self._provider_problems[name] = problem
