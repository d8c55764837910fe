"""Components of a fleet service in virtual time, with the ledger and the cloud in memory."""

import random
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy.pool import StaticPool
from sqlmodel import SQLModel, create_engine

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.fleet.instances import Cause
from astraflow.contract.fleet.plans import Actor, AppliedPlan, PlanRequest, Role
from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.fleet.recommendations import FleetConstraints, Mode
from astraflow.contract.ids import FlowId, NodeId, PoolId
from astraflow.contract.nodes import JoinToken
from astraflow.contract.plugins import PluginChange
from astraflow.contract.reports.report import Completion, NodeReport, NodeState, Report
from astraflow.runtime.database import Database
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.changes.follower import Follower
from maintainer.fleet.changes.proposals import Proposals
from maintainer.fleet.changes.run_changes import RunChanges, RunOnThisMachine
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.instances.actuator import Actuator
from maintainer.fleet.instances.fault_injection import FaultInjector
from maintainer.fleet.instances.reconciler import Reconciler
from maintainer.fleet.ledger.ledger import Changes, Ledger
from maintainer.fleet.ledger.records import LaunchIds, PoolRecord
from maintainer.fleet.maintainer_api import MaintainerApi
from maintainer.fleet.preflight import PreflightChecks
from maintainer.fleet.providers.base import Provider
from maintainer.fleet.state.fleet import FleetState, KillSwitchFile
from maintainer.fleet.state.fleet_records import FleetRecords
from maintainer.fleet.state.idempotency import IdempotentReplies
from maintainer.fleet.state.observation import Observation, TargetRecommendation
from tests import make
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud, CloudProvider

POOL = PoolId("eu")
START = 1_800_000_000.0

ALICE = Actor(name="alice", role=Role.ADMIN)
OTTO = Actor(name="otto", role=Role.OPERATOR)
HAL = Actor(name="hal", role=Role.AGENT)


def spec(**changes: Any) -> PoolSpec:
    """Returns a pool spec with permissive limits."""
    return replace(PoolSpec(id=POOL, provider="cloud", mode=Mode.ON, max_nodes=50, drain_s=30.0), **changes)


def config(**changes: Any) -> FleetConfig:
    """Returns a configuration without a cool-down and with a high rate limit, plus `changes`."""
    values = {
        "cluster": "tests",
        "providers": {"cloud": {"kind": "local_process"}},
        "limits": {"nodes": 100, "changes_per_hour": 1000, "cool_down_s": 0.0},
    }
    return FleetConfig.parse(values | changes, where="")


def memory_database() -> Database:
    """Returns a database that lasts as long as the object."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    ours = [table for name, table in SQLModel.metadata.tables.items() if name.startswith("fleet_")]
    SQLModel.metadata.create_all(engine, ours)
    database = Database(engine)
    weakref.finalize(database, engine.dispose)  # Python 3.13 warns about connections that are not closed
    return database


class Run:
    """Dataflow that follows the cloud: nodes of running machines are ready; drained nodes leave."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.drained: dict[str, str] = {}
        """Node -> requester of the drain."""
        self.never_ready: set[str] = set()
        self.lost: dict[str, float] = {}
        """Name -> time without heartbeats, in seconds."""
        self.leaving: dict[str, Cause | None] = {}
        """Name -> cause known to dataflow why the node drains, or left when its machine is gone."""
        self.by_hand: list[str] = []
        """Nodes of the pool that no provider started."""
        self.is_complete = False
        self.is_away = False
        self.changes: list[tuple[str, str, str]] = []
        """Changes of the run that dataflow was asked for: what, on what, by whom."""
        self.minted: dict[str, tuple[str, str, float]] = {}
        """Name -> role, pool and lifetime in seconds of its latest token."""
        self.revoked: list[str] = []
        self.constraints: FleetConstraints | None = None
        """Latest fleet constraints received."""

    async def watch_report(self) -> AsyncIterator[Report]:
        yield self.report()

    async def report_fleet_constraints(self, constraints: FleetConstraints) -> None:
        if self.is_away:
            raise Unavailable("dataflow is away")
        self.constraints = constraints

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        self.drained[node.removesuffix(".1")] = actor
        return "it drains"

    async def mint_join_token(
        self, role: str, *, pool: str = "", name: str = "", valid_s: float = 0.0, actor: str, reason: str
    ) -> JoinToken:
        self.minted[name] = (role, pool, valid_s)
        return JoinToken(token=f"token of {name}", id="0", expires_at=2e9, port=1)

    async def revoke_credential(self, role: str, name: str, *, actor: str, reason: str) -> str:
        if name in self.revoked:
            raise InvalidInput(f"{name} holds no credential")
        self.revoked.append(name)
        return "revoked"

    async def pause_flow(self, flow: FlowId, *, is_paused: bool, actor: str, reason: str) -> str:
        if self.is_away:
            raise Unavailable("dataflow is away")
        self.changes.append(("pause" if is_paused else "resume", flow, actor))
        return "done"

    async def change_plugins(self, change: PluginChange) -> str:
        self.changes.append((str(change.specs_by_slot()), str(change.flow or change.policy), change.actor))
        return "done"

    async def evaluate(self, flow: FlowId, *, actor: str, reason: str) -> str:
        self.changes.append(("evaluate", flow, actor))
        return "done"

    def report(self) -> Report:
        """Returns a report with the nodes of all running machines."""
        names = [
            machine.instance.handle.launch_id
            for machine in self.cloud.alive()
            if (self.cloud.state(machine).value == "running" and machine.has_token)
            or machine.instance.handle.launch_id in self.leaving
        ]
        nodes = tuple(self._node(name) for name in sorted(set(names)))
        completion = (
            Completion(reason="a test", has_learned=True, at=START, ends_run=True) if self.is_complete else None
        )
        return replace(
            make.report(), nodes=nodes + tuple(self._node(name) for name in self.by_hand), completion=completion
        )

    def _node(self, name: str) -> NodeReport:
        state = NodeState.JOINING if name in self.never_ready else NodeState.READY
        state = NodeState.DRAINING if name in self.leaving else state
        state = NodeState.GONE if name in self.drained else state
        node = make.node_report(f"{name}.1", state=NodeState.LOST if name in self.lost else state)
        facts = replace(node.facts, pool=POOL)
        return replace(node, facts=facts, heartbeat_age_s=self.lost.get(name, 0.1), cause=self.leaving.get(name))


class Parts:
    """One process lifetime of the service; `build` starts the next on the same database and cloud."""

    def __init__(
        self,
        *,
        clock: ManualClock,
        cloud: Cloud,
        database: Database,
        ledger: Ledger,
        run: Run,
        provider: Provider,
        config: FleetConfig,
        directory: Path,
        seed: int,
    ) -> None:
        self.clock = clock
        self.cloud = cloud
        self.database = database
        self.ledger = ledger
        self.run = run
        self.targets: dict[PoolId, TargetRecommendation] = {}
        self.fleet = FleetState(
            config=config,
            ledger=ledger,
            providers={"cloud": provider},
            observation=Observation(self._advice, clock=clock, fresh_s=90.0),
            switch_file=KillSwitchFile(directory / "KILL"),
            launch_ids=LaunchIds(random.Random(seed).getrandbits),
            clock=clock,
            run="run-1",
            join_address="127.0.0.1:1",
        )
        self.records = FleetRecords(self.fleet)
        replies = IdempotentReplies(self.fleet)
        self.fleet_manager = FleetManager(
            self.fleet, replies, RunChanges(self.fleet, replies, run, RunOnThisMachine.find(directory))
        )
        self.faults = FaultInjector(self.fleet, replies)
        self.proposals = Proposals(self.fleet, self.fleet_manager)
        self.maintainer_api = MaintainerApi(self.fleet, self.fleet_manager, database)
        self.preflight_checks = PreflightChecks(self.fleet, self.fleet_manager.plans)
        self.actuator = Actuator(self.fleet, run)
        self.reconciler = Reconciler(self.fleet)
        self.follower = Follower(self.fleet, self.fleet_manager)
        self._keys = 0

    def _advice(self, _: Report) -> Mapping[PoolId, TargetRecommendation]:
        return dict(self.targets)

    async def want(self, target: int, *, actor: Actor = ALICE, approver: Actor | None = ALICE) -> AppliedPlan:
        """Plans a target and applies the plan."""
        plan = await self.fleet_manager.plans.make(PlanRequest(pool=POOL, actor=actor, reason="a test", target=target))
        self._keys += 1
        return await self.fleet_manager.apply(plan.id, key=f"key-{self._keys}-{plan.id}", approver=approver)

    async def pass_time(self, duration_s: float, *, sweep_s: float = 60.0, tick_s: float = 5.0) -> None:
        """Runs the service's loops in turn."""
        until = self.clock.now() + duration_s
        next_sweep = self.clock.now()
        while self.clock.now() < until:
            await self.tick()
            if self.clock.now() >= next_sweep:
                await self.reconciler.sweep()
                next_sweep += sweep_s
            self.clock.advance(min(tick_s, until - self.clock.now()))

    async def tick(self) -> None:
        """Runs each loop of the service once, except the sweep."""
        if not self.run.is_away:
            self.fleet.observation.update(self.run.report())
        await self.reconciler.check_nodes()
        await self.follower.follow()
        await self.actuator.run_due_steps()

    def states(self) -> dict[str, int]:
        """Returns the number of instances in each state."""
        view = self.fleet.view(self.fleet.pool(POOL))
        return {state.value: number for state, number in view.nodes.items()}


async def build(
    tmp_path: Path,
    *,
    pool: PoolSpec | None = None,
    cloud: Cloud | None = None,
    database: Database | None = None,
    clock: ManualClock | None = None,
    provider: Callable[[Cloud], Provider] = CloudProvider,
    run: Run | None = None,
    seed: int = 0,
    **changes: Any,
) -> Parts:
    """Builds a service with one pool; a given database and cloud simulate a restart."""
    clock = clock or ManualClock(START)
    cloud = cloud or Cloud(clock, boot_s=20.0, end_s=5.0)
    database = database or memory_database()
    ledger = await Ledger(database).load(now=clock.wall())
    if POOL not in ledger.pools:
        await ledger.take_ownership()
        await ledger.load(now=clock.wall())
        record = PoolRecord(spec=pool or spec(), version=1, target=0)
        await ledger.change(lambda _: (Changes(pools=(record,)), None))
    return Parts(
        clock=clock,
        cloud=cloud,
        database=database,
        ledger=ledger,
        run=run or Run(cloud),
        provider=provider(cloud),
        config=config(**changes),
        directory=tmp_path,
        seed=seed,
    )
