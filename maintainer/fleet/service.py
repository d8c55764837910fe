"""Composition root of the fleet service: builds, runs and stops its parts.

dataflow's report ──► observation ──► follower (rule's targets become plans) ─┐
people, agents ──► fleet plane ──► fleet manager (guard, audit log, intents) ◄─┘
                                      │
providers ◄── actuator (next step of every intent, each second) ◄── ledger ◄── reconciler (each minute)
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from astraflow.client.connect import connect_control
from astraflow.contract.fleet.pools import FleetStatus, KillScope
from astraflow.contract.record_kinds import RecordKind
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.database import Database
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic, retry
from astraflow.runtime.service import run_until
from astraflow.wire.listener_limits import FLEET_LIMITS
from astraflow.wire.pb.fleet_plane_pb2_grpc import add_FleetPlaneServicer_to_server
from astraflow.wire.server import ListenOptions, serving
from maintainer.fleet.alarms import Alarms
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.changes.follower import Follower
from maintainer.fleet.changes.proposals import Proposals
from maintainer.fleet.changes.run_changes import RunChanges, RunControl, RunHost, RunOnThisMachine
from maintainer.fleet.config import FleetConfig, provider_directory
from maintainer.fleet.instances.actuator import Actuator
from maintainer.fleet.instances.fault_injection import FaultInjector
from maintainer.fleet.instances.reconciler import Reconciler
from maintainer.fleet.ledger.ledger import Changes, Ledger, open_ledger
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from maintainer.fleet.ledger.ownership import directory_lock
from maintainer.fleet.ledger.records import LaunchIds, PoolRecord
from maintainer.fleet.maintainer_api import MaintainerApi
from maintainer.fleet.policy_sync import PolicySync
from maintainer.fleet.preflight import PreflightChecks
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import Provider
from maintainer.fleet.servicer import FleetPlaneServicer
from maintainer.fleet.state.fleet import FLEET_ACTOR, FleetState, KillSwitchFile
from maintainer.fleet.state.fleet_records import FleetRecords
from maintainer.fleet.state.idempotency import IdempotentReplies
from maintainer.fleet.state.observation import (
    DataflowControl,
    Observation,
    RecommendationSource,
    reported_recommendations,
)

log = get_logger()

KILL_FILE = "KILL"
"""File in the service's directory: while it exists, no instance is launched or retired."""

FIRST_REPORT_S = 60.0
"""Time to wait for dataflow's first report at the start. Later, dataflow may be down for any time."""

STOP_TIMEOUT_S = 12.0
"""Maximum time to retire all nodes on shutdown. The next start finds the rest, or it expires."""


async def serve(
    config: FleetConfig,
    *,
    dataflow: str,
    join_address: str,
    token: str,
    authority: Path | None,
    listen: ListenOptions,
    directory: Path,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    recommendations: RecommendationSource = reported_recommendations,
    clock: Clock | None = None,
) -> None:
    """Runs the fleet service of the run at `dataflow` until `stop` is set. on_ready: called with the service's address.

    join_address: `HOST:PORT` where nodes join. token: run token. authority: certificate folder of a run with TLS.
    Raises: InvalidInput for an unusable configuration, Conflict for a directory in use, Unavailable when dataflow
    cannot be reached at the start.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as resources:
        database = await asyncio.to_thread(open_ledger, directory, config.database)
        resources.callback(database.close)
        resources.enter_context(directory_lock(directory))
        ledger = Ledger(database)
        await ledger.take_ownership()
        await ledger.load(now=clock.wall())
        control = await resources.enter_async_context(connect_control(dataflow, token, authority=authority))
        report = await retry(control.report, what="the first report", give_up_after_s=FIRST_REPORT_S, clock=clock)
        observation = Observation(recommendations, clock=clock, fresh_s=config.limits.stale_after_s)
        provider_by_name = build_providers(config, clock=clock, directory=directory)
        for provider in provider_by_name.values():
            resources.push_async_callback(provider.close)
        fleet = FleetState(
            config=config,
            ledger=ledger,
            providers=provider_by_name,
            observation=observation,
            switch_file=KillSwitchFile(directory / KILL_FILE),
            launch_ids=LaunchIds(),
            clock=clock,
            run=ledger.tagged(report.run),
            join_address=join_address,
        )
        await seed_pools(fleet)
        run_host = await asyncio.to_thread(RunOnThisMachine.find, directory.absolute().parent)  # noqa: ASYNC240 (no access to the disk)
        service = Service(fleet, control, database, run_host=run_host)
        async with serving(
            listen, lambda server: add_FleetPlaneServicer_to_server(service.servicer, server), limits=FLEET_LIMITS
        ) as address:
            on_ready(address)
            await run_until(stop, service.run(), drain=service.retire_all)


class ServiceControl(DataflowControl, RunControl, Protocol):
    """Interface of dataflow's control plane that the service uses."""


class Service:
    """Background loops of the service and their shared parts."""

    def __init__(
        self, fleet: FleetState, dataflow_control: "ServiceControl", database: Database, *, run_host: RunHost | None
    ) -> None:
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self._dataflow = dataflow_control
        replies = IdempotentReplies(fleet)
        self._manager = FleetManager(fleet, replies, RunChanges(fleet, replies, dataflow_control, run_host))
        self._actuator = Actuator(fleet, dataflow_control)
        self._reconciler = Reconciler(fleet)
        self._follower = Follower(fleet, self._manager)
        self._policy_sync = PolicySync(fleet, self._manager, dataflow_control)
        self._alarms = Alarms(fleet, self._manager, database, self._reconciler.problems)
        self._is_due = asyncio.Event()
        self._recommendation_changed = asyncio.Event()
        self._is_ending = False
        self.servicer = FleetPlaneServicer(
            self._manager,
            FaultInjector(fleet, replies),
            Proposals(fleet, self._manager),
            MaintainerApi(fleet, self._manager, database),
            PreflightChecks(fleet, self._manager.plans),
            fleet.ledger,
            self._status,
            self._is_due.set,
        )

    async def run(self) -> None:
        """Runs all loops until cancelled."""
        times, clock = self._fleet.config.times, self._fleet.clock
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                self._fleet.observation.watch(self._dataflow, on_recommendations=self._recommendation_changed.set)
            )
            tasks.create_task(periodic(self._reconciler.sweep, every_s=times.sweep_s, clock=clock))
            tasks.create_task(periodic(self._check_nodes, every_s=times.tick_s, clock=clock))
            tasks.create_task(periodic(self._fleet.ledger.check_owner, every_s=times.follow_s, clock=clock))
            tasks.create_task(periodic(self._alarms.check, every_s=times.follow_s, clock=clock))
            tasks.create_task(self._follow_rule())
            tasks.create_task(periodic(self._policy_sync.sync, every_s=times.follow_s, clock=clock))
            tasks.create_task(self._actuator.run(self._is_due))

    async def retire_all(self) -> None:
        """Retires all nodes on shutdown if `retire_on_stop` is set; otherwise nodes keep running."""
        self._is_ending = True
        if not self._fleet.config.retire_on_stop or self._fleet.kill is KillScope.ALL:
            return
        for record in self._fleet.ledger.alive():
            await self._records.record_event(
                record.id, InstanceEvent.STOP, message="the fleet service is stopping (retire_on_stop)"
            )
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while self._fleet.ledger.alive():
                    self._is_due.set()
                    await self._fleet.clock.sleep(0.1)
        except TimeoutError:
            log.warning("nodes_left_running", launches=[record.id for record in self._fleet.ledger.alive()])

    async def _check_nodes(self) -> None:
        """Checks the nodes; repeats the check while the ledger's database cannot be reached."""
        await retry(self._reconciler.check_nodes, what="checking the nodes", clock=self._fleet.clock)

    async def _follow_rule(self) -> None:
        """Runs the follower when recommendations change, and periodically to replace lost nodes."""
        while True:
            self._recommendation_changed.clear()
            if not self._is_ending:
                await self._follower.follow()
                self._is_due.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._fleet.config.times.follow_s):
                    await self._recommendation_changed.wait()

    def _status(self) -> FleetStatus:
        problems = tuple(self._reconciler.problems().values())
        return self._fleet.status(last_sweep_at=self._reconciler.last_sweep_at, problems=problems)


def build_providers(config: FleetConfig, *, clock: Clock, directory: Path) -> Mapping[str, Provider]:
    """Builds the configured providers, by name. Raises: InvalidInput."""
    return {
        name: providers.build(spec, clock=clock, directory=provider_directory(directory, name))
        for name, spec in config.providers.items()
    }


async def seed_pools(fleet: FleetState) -> None:
    """Creates configured pools that are missing in the ledger; existing pools keep the ledger's spec."""

    def decide(ledger: Ledger) -> tuple[Changes, None]:
        missing_pools = {name: pool for name, pool in fleet.config.pools.items() if name not in ledger.pools}
        pools = tuple(
            PoolRecord(spec=pool.spec(name), version=1, target=pool.first_target)
            for name, pool in missing_pools.items()
        )
        decisions = tuple(
            FleetRecords(fleet).decision(
                RecordKind.SPEC,
                {"change": "created"},
                pool=name,
                actor=FLEET_ACTOR,
                reason="the pool is in the configuration",
            )
            for name in missing_pools
        )
        numbered_decisions = tuple(
            replace(decision, ordinal=decision.ordinal + offset) for offset, decision in enumerate(decisions)
        )
        return Changes(pools=pools, decisions=numbered_decisions), None

    await fleet.ledger.change(decide)
