"""Provider and dataflow of a case: two interfaces to the same simulated world."""

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.fleet.instances import Cause
from astraflow.contract.fleet.recommendations import FleetConstraints, PoolRecommendation
from astraflow.contract.ids import NodeId, PoolId, node_name
from astraflow.contract.nodes import JoinToken
from astraflow.contract.records import problem_record
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from astraflow.runtime.clock import Clock
from astraflow.scaling.measurement.lifecycle import LAST_PENDING, Phase
from astraflow.scaling.simulation.simulator import Simulation
from maintainer.evals.cases import Case, Fault
from maintainer.evals.simulation.simulated_learning import SimulatedLearning
from maintainer.evals.simulation.simulated_reports import node_report, stream_report
from maintainer.fleet.providers.base import (
    Capabilities,
    CapacityError,
    Handle,
    Instance,
    LaunchSpec,
    QuotaError,
    Quote,
    RetireResult,
    RetryError,
    State,
    Tags,
)

KIND = "simulated"
EPISODES_PER_GROUP = 8
BOOT_FAILURE_S = 90.0
"""Time from a launch to the termination of an instance that never starts, seconds."""
RUN_BEFORE_CRASH_S = 240.0
"""Time from the first task to the termination of an instance that crashes, seconds."""
_WITHOUT_ANSWER = frozenset({"timeout", "hang"})
_SHORT_LIVED: Mapping[str, str] = {"crash": "the container exited with code 137 after its model was loaded: crash loop"}
"""Faults of instances that start, and the provider's message after they terminated."""
SIMULATED = ("nodes", "trainer", "provider")


@dataclass(kw_only=True, slots=True)
class SimulatedInstance:
    """Instance as its provider sees it. Its node in the simulation has the same id."""

    launch_id: str
    pool: str
    tags: Tags
    created_at: float
    usd_per_hour: float
    message: str = ""
    """Provider's message after it terminated."""
    is_drained: bool = False
    """True if dataflow was asked to drain it."""
    ends_at: float = math.inf
    """Termination, seconds since the start, of an instance that crashes."""
    is_gone: bool = False


class SimulatedCloud:
    """Instances of all pools: implements `Provider`, `DataflowControl` and dataflow, because a case has one world."""

    def __init__(self, case: Case, simulation: Simulation, clock: Clock) -> None:
        self.case = case
        self.simulation = simulation
        self.clock = clock
        self.began_at = clock.wall()
        self.machines: dict[str, SimulatedInstance] = {}
        self._handles_by_launch: dict[str, list[str]] = defaultdict(list)
        self.recommendations: tuple[PoolRecommendation, ...] = ()
        self.constraints: FleetConstraints | None = None
        """Constraints that the fleet service reported last; None before the first."""
        self.is_report_stuck = False
        self.starts = 0
        self.injected_text = ""
        """Text in the errors of nodes and the problems of the run."""
        self.foreign_node = ""
        """Name of a node without a launch; empty for none."""
        self.learning = SimulatedLearning(case.learning)
        self._sequence = 0
        self._report: Report | None = None
        self._pools = [name for name, _ in simulation.nodes.pools]

    @property
    def usd_per_hour(self) -> float:
        """Price of all running instances, US dollars per hour."""
        return sum(machine.usd_per_hour for machine in self.machines.values() if not machine.is_gone)

    def adopt(self, node: str, launch_id: str, pool: str, tags: Tags) -> None:
        """Registers an initial instance."""
        self.machines[node] = SimulatedInstance(
            launch_id=launch_id, pool=pool, tags=tags, created_at=self.began_at, usd_per_hour=self._price(pool)
        )
        self._handles_by_launch[launch_id].append(node)

    def end_due_instances(self) -> None:
        """Ends instances whose time has come; marks instances without a node as gone."""
        rows = self._rows()
        due_rows = [
            rows[node] for node, instance in self.machines.items() if instance.ends_at <= self._now and node in rows
        ]
        if due_rows:
            self.simulation.nodes.end(np.array(due_rows, np.int64))
        phase = self.simulation.nodes["phase"]
        for node, machine in self.machines.items():
            if not machine.is_gone and (node not in rows or phase[rows[node]] == Phase.GONE):
                machine.is_gone = True

    # Provider interface.

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        pool = spec.tags.pool
        kinds = {fault.kind: fault for fault in self._faults(pool)}
        alive = self._alive(launch_id)
        if alive and not _WITHOUT_ANSWER & kinds.keys():
            return Handle(provider=KIND, id=alive[0], launch_id=launch_id)
        if "quota" in kinds:
            raise QuotaError(f"VcpuLimitExceeded: the quota of region {self.case.region(pool)} is used up")
        if "bid" in kinds:
            raise CapacityError("SpotMaxPriceTooLow: the price of the spot market is above the bid")
        number = self._pools.index(PoolId(pool))
        world = self.simulation.nodes
        if "capacity" in kinds or not world.launch(number, now=self._now):
            raise CapacityError(f"InsufficientInstanceCapacity: no spot offers in {pool}")
        node = world.ids[-1]
        self.starts += 1
        machine = SimulatedInstance(
            launch_id=launch_id,
            pool=pool,
            tags=spec.tags,
            created_at=self.clock.wall(),
            usd_per_hour=self._price(pool),
        )
        self.machines[node] = machine
        self._handles_by_launch[launch_id].append(node)
        if "image" in kinds:
            world.fail_launch_at(node, at=self._now + BOOT_FAILURE_S)
            machine.message = "the container exited with code 1: crash loop, image astraflow/node:broken"
        for kind in _SHORT_LIVED.keys() & kinds.keys():
            machine.ends_at = float(world["changes_at"][-1]) + RUN_BEFORE_CRASH_S
            machine.message = _SHORT_LIVED[kind]
        if "queue" in kinds:
            world.fail_launch_at(node, at=math.inf)
        if _WITHOUT_ANSWER & kinds.keys():
            world.fail_launch_at(node, at=self._now + BOOT_FAILURE_S if "timeout" in kinds else math.inf)
            raise RetryError("timed out: no answer within 120 s")
        return Handle(provider=KIND, id=node, launch_id=launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        rows = self._rows()
        retired_rows = [rows[node] for node in self._alive(launch_id) if keep is None or node != keep.id]
        self.simulation.nodes.end(np.array(retired_rows, np.int64))
        self.end_due_instances()
        return RetireResult.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        self.end_due_instances()
        return tuple(self._instance(node) for node, machine in self.machines.items() if machine.tags.cluster == cluster)

    async def describe(self, handle: Handle) -> Instance:
        if handle.id not in self.machines:
            return Instance(handle=handle, tags=None, state=State.GONE)
        return self._instance(handle.id)

    def capabilities(self) -> Capabilities:
        delay_s = max(config.launch_delay_s for _, config in self.simulation.nodes.pools)
        return Capabilities(kind=KIND, simulated=("machines",), has_spot=True, notice_s=120.0, launch_delay_s=delay_s)

    async def quote(self, spec: LaunchSpec) -> Quote:
        return Quote(usd_per_hour=self._price(spec.tags.pool), launch_delay_s=300.0, source="the scenario")

    async def preflight(self, spec: LaunchSpec) -> str:
        if any(fault.kind == "quota" for fault in self._faults(spec.tags.pool)):
            raise QuotaError(f"VcpuLimitExceeded: the quota of region {self.case.region(spec.tags.pool)} is used up")
        return f"the scenario would start a machine in {spec.tags.pool}"

    async def close(self) -> None:
        return None

    # Dataflow interface.

    async def watch_report(self) -> AsyncIterator[Report]:
        yield self.current_report()

    async def report_fleet_constraints(self, constraints: FleetConstraints) -> None:
        """Stores the constraints; the rule applies them at its next tick."""
        self.constraints = constraints

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        rows = self._rows()
        for handle in self._alive(node_name(node)):
            self.machines[handle].is_drained = True
            self.simulation.nodes.drain(rows[handle], now=self._now)
        return "draining"

    async def mint_join_token(
        self, role: str, *, pool: str = "", name: str = "", valid_s: float = 0.0, actor: str, reason: str
    ) -> JoinToken:
        return JoinToken(token=f"of {name}", id="0", expires_at=self.clock.wall() + valid_s, port=1)

    async def revoke_credential(self, role: str, name: str, *, actor: str, reason: str) -> str:
        raise InvalidInput(
            f"cannot revoke the credential of {name!r}: it has none; nodes of a simulation need no credential",
            code="evaluation.no_credential",
        )

    async def report(self) -> Report:
        """Returns the latest report. Raises: Unavailable before the first."""
        if self._report is None:
            raise Unavailable(
                "cannot read the report: the run has not started; retry later", code="evaluation.no_report"
            )
        return self._report

    def current_report(self) -> Report:
        """Report of the run at this time; the previous one while `is_report_stuck`."""
        if self._report is None or not self.is_report_stuck:
            self._sequence += 1
            self._report = self._build_report()
        return self._report

    def _build_report(self) -> Report:
        world, simulation = self.simulation.nodes, self.simulation
        phases, speeds = world["phase"], world["speed"] * world["work_share"]
        nodes = []
        for row, node in enumerate(world.ids):
            machine = self.machines.get(node)
            if machine is None or not LAST_PENDING < phases[row] < Phase.GONE:
                continue
            pool = int(world["pool"][row])
            rate = float(speeds[row] * world.factors[pool] * simulation.busy_share * EPISODES_PER_GROUP)
            nodes.append(self._node(machine.launch_id, machine.pool, rate, _termination_cause(machine, phases[row])))
        if self.foreign_node:
            nodes.append(self._node(self.foreign_node, str(self._pools[0]), 0.0, None))
        return Report(
            run=self.case.name,
            sequence=self._sequence,
            at=self.clock.wall(),
            uptime_s=self._now,
            simulated=SIMULATED,
            flows=(self.learning.flow(),),
            streams=(stream_report(simulation.trainer, learning_rate=self.learning.learning_rate),),
            pools=(),
            nodes=tuple(nodes),
            events=(),
            problems=(problem_record("journal", "", error=self.injected_text),) if self.injected_text else (),
            recommendations=self.recommendations,
            plugin_kinds=self.learning.plugin_kinds(),
            learning_faults=self.learning.faults(self._now, injected_text=self.injected_text),
        )

    def _node(self, name: str, pool: str, episodes_per_s: float, cause: Cause | None) -> NodeReport:
        return node_report(
            name,
            pool,
            NodeState.READY if cause is None else NodeState.DRAINING,
            episodes_per_s=episodes_per_s,
            joined_at=self.began_at,
            injected_text=self.injected_text,
            cause=cause,
        )

    @property
    def _now(self) -> float:
        return self.clock.wall() - self.began_at

    def _rows(self) -> Mapping[str, int]:
        return {node: row for row, node in enumerate(self.simulation.nodes.ids)}

    def _alive(self, launch_id: str) -> Sequence[str]:
        self.end_due_instances()
        return [node for node in self._handles_by_launch.get(launch_id, ()) if not self.machines[node].is_gone]

    def _faults(self, pool: str) -> Sequence[Fault]:
        hours = self._now / 3600
        return [fault for fault in self.case.faults if fault.pool == pool and fault.from_h <= hours < fault.until_h]

    def _price(self, pool: str) -> float:
        return dict(self.simulation.nodes.pools)[PoolId(pool)].bounds.price_per_hour

    def _instance(self, node: str) -> Instance:
        machine = self.machines[node]
        state, notice_at = State.GONE, None
        if not machine.is_gone:
            world, row = self.simulation.nodes, self._rows()[node]
            phase = int(world["phase"][row])
            if _termination_cause(machine, phase) is Cause.PREEMPTED:
                state, notice_at = State.TERMINATING, self.began_at + float(world["preempted_at"][row])
            else:
                state = State.PENDING if phase <= LAST_PENDING else State.RUNNING
        instance = Instance(
            handle=Handle(provider=KIND, id=node, launch_id=machine.launch_id),
            tags=machine.tags,
            state=state,
            created_at=machine.created_at,
            region=self.case.region(machine.pool),
            notice_at=notice_at,
        )
        return replace(instance, message=machine.message) if state is State.GONE else instance


def _termination_cause(machine: SimulatedInstance, phase: int) -> Cause | None:
    """Cause of the node's drain; None if it does not drain."""
    if phase != Phase.DRAINING:
        return None
    return Cause.REQUESTED if machine.is_drained else Cause.PREEMPTED
