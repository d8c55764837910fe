"""Compares the ledger with the providers' lists and with dataflow's nodes, and corrects differences.

listed, gone in the ledger  adopted if its node works; else an orphan, watched for a while, then terminated
listed, of another fleet    reported
in the ledger, not listed   gone after two lists without it if it was never ready; else reported until its node ends
many not listed at once     the provider cannot be read
two under one launch id     the registered one stays, the other is terminated
terminating for long        requested again, and reported as a problem
suspect for long            drained, and replaced

A missing answer changes nothing: neither a provider, or one of its regions, that cannot be read nor a silent dataflow.
A fresh heartbeat outranks what a provider lists. A node that is missing from the reports has left only after
`times.lost_after_s`, because a restarted dataflow does not know its nodes yet.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.instances import Cause, InstanceState
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.report import NodeReport, NodeState
from astraflow.runtime.logs import get_logger
from maintainer.fleet.instances.actuator import has_ended
from maintainer.fleet.instances.orphans import Orphans
from maintainer.fleet.instances.renewal import renew
from maintainer.fleet.ledger.ledger import Changes, Ledger
from maintainer.fleet.ledger.lifecycle import STARTING_STATES, InstanceEvent
from maintainer.fleet.ledger.records import LaunchRecord
from maintainer.fleet.providers.base import (
    Instance,
    Provider,
    ProviderError,
    RetryError,
    State,
    is_unread,
    unread_places,
)
from maintainer.fleet.state.fleet import FleetState
from maintainer.fleet.state.fleet_records import FleetRecords
from maintainer.fleet.state.observation import HEARTBEAT_S

log = get_logger()

MISSED_LISTS = 2
"""Consecutive lists without an instance after which it is gone, or reported while its node works."""

MANY_ABSENT, ABSENT_SHARE = 2, 0.5
"""Number and share of a provider's instances that are too many to have ended between two lists."""

_STATE_EVENTS = {
    State.PENDING: InstanceEvent.PENDING,
    State.STUCK: InstanceEvent.RETIRE,
    State.RUNNING: InstanceEvent.RUNNING,
    State.TERMINATING: InstanceEvent.PREEMPTING,
    State.GONE: InstanceEvent.GONE,
}


class Reconciler:
    """Reconciles ledger, providers and dataflow. One instance per service."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self.last_sweep_at: float | None = None
        """Unix seconds of the latest sweep in which every provider answered; None before the first."""
        self._provider_problems: dict[str, str] = {}
        """Error of each provider that could not be read in the latest sweep."""
        self._orphans = Orphans(fleet)

    def problems(self) -> Mapping[str, Record]:
        """Returns problems that people should know of, by key."""
        problems = {
            f"provider {name}": problem_record("provider_unreadable", "", provider=name, error=error)
            for name, error in sorted(self._provider_problems.items())
        }
        problems |= self._orphans.problems()
        for record in self._fleet.ledger.records.values():
            problems |= {f"{known.cause} of {record.id}": known for known in self._problems_of(record)}
        return problems

    def _problems_of(self, record: LaunchRecord) -> Iterator[Record]:
        """Returns the problems of a launch."""
        fleet, times, instance = self._fleet, self._fleet.config.times, record.instance
        names = {"launch": record.id, "provider": instance.provider, "handle": instance.handle}
        if instance.state is InstanceState.GONE:
            if fleet.is_back(record):
                yield problem_record("instance_returned", "", **names)
            return
        if instance.retiring_at is not None:
            waited_s = fleet.stored_times.age_s(instance.retiring_at)
            if waited_s > times.terminate_timeout_s:
                yield problem_record("instance_not_terminated", "", waited_s=round(waited_s), **names)
        if instance.provider not in fleet.providers:
            yield problem_record("provider_not_configured", "", **names)
        if record.missed >= MISSED_LISTS:
            yield problem_record("instance_not_listed", "", **names)
        waits_s = fleet.stored_times.age_s(instance.intended_at)
        if instance.state is InstanceState.INTENDED and waits_s > times.start_timeout_s:
            cause = "launch_waits" if instance.message else "launch_held"
            yield problem_record(cause, "", waited_s=round(waits_s), error=instance.message, **names)

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
                await self._retire_if_late(fleet.ledger.records[record.id])
            await self._drain_if_suspect(fleet.ledger.records[record.id])
        if fleet.observation.is_fresh and fleet.kill is not KillScope.ALL:
            for pool in tuple(fleet.ledger.pools.values()):
                await renew(fleet, pool)
        await self._recheck_lost_instances()

    async def _sweep(self, name: str, provider: Provider) -> Mapping[str, ProviderError]:
        """Compares a provider's list with the ledger; returns what the list does not cover."""
        started_at = self._fleet.clock.wall()
        async with asyncio.timeout(self._fleet.config.times.call_timeout_s):
            listed = await provider.list(self._fleet.cluster)
        unread = dict(unread_places(listed))
        by_launch: dict[str, list[Instance]] = defaultdict(list)
        for instance in listed:
            by_launch[instance.handle.launch_id].append(instance)
        settled_before = started_at - provider.capabilities().listing_lag_s
        expected = [
            record
            for record in self._fleet.ledger.alive()
            if record.instance.provider == name
            and not is_unread(unread, handle=record.instance.handle, launch_id=record.id)
            and (record.id in by_launch or (record.instance.launched_at or started_at) < settled_before)
        ]
        absent = [
            record for record in expected if not await self._compare(record, by_launch.get(record.id, []), provider)
        ]
        unread |= _too_many(absent, of=len(expected))
        for record in absent:
            if record.id not in unread:
                await self._count_missing(record, provider)
        alive = [instance for instance in listed if instance.state is not State.GONE]
        await self._orphans.watch(name, provider, alive, unread)
        return unread

    async def _compare(self, record: LaunchRecord, listed: Sequence[Instance], provider: Provider) -> bool:
        """Compares a launch with the instances listed under its id; returns whether one of them is its instance."""
        recorded_handle = record.instance.handle
        alive = sorted(
            (instance for instance in listed if instance.state is not State.GONE),
            key=lambda instance: (instance.handle.id != recorded_handle, instance.created_at),
        )
        registered = next((instance for instance in listed if instance.handle.id == recorded_handle), None)
        if alive:
            registered = alive[0]  # the answer to its launch was lost, or another instance replaced it
        if registered is not None and (registered.state is not State.GONE or await self._has_ended(record, provider)):
            await self._register(record, registered)
            if len(alive) > 1 and self._fleet.kill is not KillScope.ALL:
                log.warning(
                    "duplicate_instance", launch=record.id, registered=registered.handle.id, instances=len(alive)
                )
                await self._orphans.retire(provider, record.id, keep=registered.handle)
            return True
        return False

    def _may_have_ended(self, record: LaunchRecord) -> bool:
        """Returns whether dataflow's reports agree that the instance has ended."""
        if record.instance.ready_at is not None and record.instance.state is not InstanceState.RETIRING:
            return self._fleet.observation.is_silent(record.id)
        return not self._fleet.observation.is_alive(record.id)

    async def _register(self, record: LaunchRecord, listed: Instance) -> None:
        """Records an instance's state, and its handle if the answer to its launch was lost."""
        message = (
            listed.message if listed.message and listed.state in (State.STUCK, State.TERMINATING, State.GONE) else None
        )
        cause = Cause.PREEMPTED if listed.notice_at is not None else None  # also when the instance has ended already
        observation = self._fleet.observation
        is_outranked = (listed.state is State.PENDING and observation.is_alive(record.id)) or (
            listed.state is State.STUCK and not observation.is_silent(record.id, for_s=self._silent_s(record))
        )
        event = InstanceEvent.RUNNING if is_outranked else _STATE_EVENTS[listed.state]
        updated = await self._records.record_event(
            record.id, event, cause=cause, message=message, handle=listed.handle.id, missed=0
        )
        if updated is not None and updated.instance.state is InstanceState.SUSPECT:
            log.warning(
                "instance_suspect",
                launch=record.id,
                state=record.instance.state.value,
                provider_state=listed.state.value,
            )

    def _silent_s(self, record: LaunchRecord) -> float:
        """Returns for how many seconds reports must lack a node, since a restarted dataflow does not know its nodes."""
        instance, fleet = record.instance, self._fleet
        launched_s = fleet.stored_times.age_s(instance.launched_at or instance.intended_at)
        is_new = instance.ready_at is None and launched_s <= fleet.observation.unbroken_s
        return HEARTBEAT_S if is_new else fleet.config.times.lost_after_s

    async def _count_missing(self, record: LaunchRecord, provider: Provider) -> None:
        """Counts a list without the instance. After its node was ready, it is gone when dataflow reports its end."""
        was_ready = record.instance.ready_at is not None and record.instance.state is not InstanceState.RETIRING
        if record.missed + 1 >= MISSED_LISTS and not was_ready and await self._has_ended(record, provider):
            message = "the provider no longer lists the instance"
            await self._records.record_event(record.id, InstanceEvent.MISSING, message=message)
            return

        def decide(ledger: Ledger) -> tuple[Changes, None]:
            current_record = ledger.records[record.id]
            missed = min(current_record.missed + 1, MISSED_LISTS)
            return Changes(records=(replace(current_record, missed=missed),) if missed > record.missed else ()), None

        await self._fleet.ledger.change(decide)

    async def _has_ended(self, record: LaunchRecord, provider: Provider) -> bool:
        """Returns whether dataflow agrees that the instance has ended, and the provider when it is asked by its own id.

        Raises: TimeoutError.
        """
        if not self._may_have_ended(record):
            return False
        async with asyncio.timeout(self._fleet.config.times.call_timeout_s):
            return await has_ended(provider, record)

    async def _check_node(self, record: LaunchRecord) -> None:
        fleet, node = self._fleet, self._fleet.observation.node(record.id)
        if node is not None and node.state is NodeState.READY:
            if record.instance.ready_at is None or record.instance.state is not InstanceState.READY:
                await self._records.record_event(record.id, InstanceEvent.NODE_READY)
        elif node is not None and node.state is NodeState.LOST:
            if node.heartbeat_age_s > fleet.config.times.lost_after_s:
                await self._records.record_event(
                    record.id, InstanceEvent.NODE_LEFT, message="dataflow receives no heartbeats from the node"
                )
        elif record.instance.state is InstanceState.READY:
            await self._check_departed_node(record, node)

    async def _check_departed_node(self, record: LaunchRecord, node: NodeReport | None) -> None:
        """Handles a node that has left or has a preemption notice, which some clouds give to the instance alone."""
        fleet, cause = self._fleet, self._fleet.observation.cause(record.id)
        if fleet.observation.has_left(record.id, missing_for_s=fleet.config.times.lost_after_s):
            await self._records.record_event(
                record.id, InstanceEvent.NODE_LEFT, cause=cause, message="the node has left"
            )
        elif node is not None and node.state is NodeState.DRAINING and cause is Cause.PREEMPTED:
            await self._records.record_event(
                record.id, InstanceEvent.PREEMPTING, message="the node got a preemption notice"
            )

    async def _recheck_lost_instances(self) -> None:
        """Corrects the cause of lost instances whose nodes reported a preemption notice before their end."""
        fleet = self._fleet
        for record in tuple(fleet.ledger.records.values()):
            if record.instance.cause is Cause.LOST and fleet.observation.cause(record.id) is Cause.PREEMPTED:
                await self._records.record_event(record.id, InstanceEvent.NODE_LEFT, cause=Cause.PREEMPTED)

    async def _retire_if_late(self, record: LaunchRecord) -> None:
        """Retires an instance whose node is not ready in time."""
        fleet, is_starting = self._fleet, record.instance.state in STARTING_STATES
        if not is_starting or record.instance.launched_at is None or not fleet.observation.is_current:
            return
        pool = fleet.ledger.pools[record.instance.pool]
        ready_timeout_s = min(fleet.config.times.start_timeout_s, max(60.0, 2 * fleet.launch_delay_s(pool.spec)))
        # A node cannot join while dataflow does not answer.
        if min(fleet.stored_times.age_s(record.instance.launched_at), fleet.observation.fresh_for_s) > ready_timeout_s:
            message = f"the node was not ready within {ready_timeout_s:.0f} s"
            await self._records.record_event(record.id, InstanceEvent.RETIRE, message=message)

    async def _drain_if_suspect(self, record: LaunchRecord) -> None:
        """Drains an instance that has been SUSPECT for too long, and whose node shows no sign of life."""
        fleet, since = self._fleet, record.suspect_at
        if since is None or not fleet.observation.is_silent(record.id, for_s=fleet.config.times.lost_after_s):
            return
        suspect_for_s = fleet.stored_times.age_s(since)
        if suspect_for_s > fleet.config.times.suspect_timeout_s:
            message = f"the instance was in an inconsistent state for {suspect_for_s:.0f} s"
            await self._records.record_event(record.id, InstanceEvent.DRAIN, cause=Cause.INCONSISTENT, message=message)

    def _record_failure(self, name: str, problem: str) -> None:
        if self._provider_problems.get(name) != problem:
            log.warning("provider_unreadable", provider=name, problem=problem)
        self._provider_problems[name] = problem


def _too_many(absent: Sequence[LaunchRecord], *, of: int) -> Mapping[str, ProviderError]:
    """Returns the absent instances as unread ones if they are too many to have ended between two lists."""
    missing = [record.id for record in absent if record.instance.state is not InstanceState.RETIRING]
    if len(missing) < max(MANY_ABSENT, ABSENT_SHARE * of):
        return {}
    problem = RetryError(
        f"cannot rely on the list: it lacks {len(missing)} of {of} instances; check the permissions and regions of the "
        "provider, and the tags of its instances",
        code="provider.many_absent",
    )
    return dict.fromkeys(missing, problem)
