"""The provider and the dataflow of a case: both are the simulated world, seen from two sides."""

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astraflow.contract.access import JoinToken
from astraflow.contract.advice import FleetTerms, PoolAdvice
from astraflow.contract.causes import Cause
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import NodeId, PoolId, name_of
from astraflow.contract.reports import NodeReport, NodeState, Report
from astraflow.runtime.clock import Clock
from astraflow.scaling.lifecycle import LAST_PENDING, Phase
from astraflow.scaling.simulator import Simulation
from maintainer.evals.case import Case, Fault
from maintainer.evals.reported import node_report, stream_report
from maintainer.fleet.providers.base import (
    Capabilities,
    Capacity,
    Handle,
    Instance,
    LaunchSpec,
    Quota,
    Quote,
    Retired,
    Retry,
    State,
    Tags,
)

KIND = "simulated"
EPISODES_PER_GROUP = 8
CRASH_S = 90.0
"""From a launch to the end of a machine that does not come up."""
WORKS_S = 240.0
"""From the first task to the end of one that comes up and does not last."""
_UNANSWERED = frozenset({"timeout", "hang"})
_BRIEF: Mapping[str, str] = {"crash": "the container exited with code 137 after its model was loaded: crash loop"}
"""Faults of machines that come up, and what their provider says when they have ended."""
SIMULATED = ("nodes", "trainer", "provider")


@dataclass(kw_only=True, slots=True)
class Machine:
    """One, as its provider has it. Its node in the world has the same id."""

    launch_id: str
    pool: str
    tags: Tags
    created_at: float
    usd_per_hour: float
    message: str = ""
    """What its provider says of it once it has ended."""
    is_drained: bool = False
    """Dataflow was asked to let it finish."""
    ends_at: float = math.inf
    """Seconds since the start, for one that comes up and does not last."""
    is_gone: bool = False


class SimulatedCloud:
    """Machines of all pools; a `Provider`, a `Steering` and a dataflow at once, because a case has one world."""

    def __init__(self, case: Case, simulation: Simulation, clock: Clock) -> None:
        self.case = case
        self.simulation = simulation
        self.clock = clock
        self.began_at = clock.wall()
        self.machines: dict[str, Machine] = {}
        self._of_launch: dict[str, list[str]] = defaultdict(list)
        self.advice: tuple[PoolAdvice, ...] = ()
        self.terms: FleetTerms | None = None
        """What the fleet service told last; None before."""
        self.is_stuck = False
        self.starts = 0
        self.planted = ""
        """What nodes put into their errors, and the run into its troubles."""
        self.foreign = ""
        """Name of a node that nobody launched."""
        self._sequence = 0
        self._report: Report | None = None
        self._pools = [name for name, _ in simulation.world.pools]

    @property
    def usd_per_hour(self) -> float:
        """Of all machines that are paid."""
        return sum(machine.usd_per_hour for machine in self.machines.values() if not machine.is_gone)

    def adopt(self, node: str, launch_id: str, pool: str, tags: Tags) -> None:
        """A machine that is there from the start."""
        self.machines[node] = Machine(
            launch_id=launch_id, pool=pool, tags=tags, created_at=self.began_at, usd_per_hour=self._price(pool)
        )
        self._of_launch[launch_id].append(node)

    def settle(self) -> None:
        """Machines whose time has come end; those whose nodes have gone are gone."""
        rows = self._rows()
        over = [rows[node] for node, one in self.machines.items() if one.ends_at <= self._now and node in rows]
        if over:
            self.simulation.world.end(np.array(over, np.int64))
        phase = self.simulation.world["phase"]
        for node, machine in self.machines.items():
            if not machine.is_gone and (node not in rows or phase[rows[node]] == Phase.GONE):
                machine.is_gone = True

    # A provider.

    async def launch(self, spec: LaunchSpec, launch_id: str) -> Handle:
        pool = spec.tags.pool
        kinds = {fault.kind: fault for fault in self._faults(pool)}
        known = self._alive(launch_id)
        if known and not _UNANSWERED & kinds.keys():
            return Handle(provider=KIND, id=known[0], launch_id=launch_id)
        if "quota" in kinds:
            raise Quota(f"VcpuLimitExceeded: the quota of region {self.case.region(pool)} is used up")
        if "bid" in kinds:
            raise Capacity("SpotMaxPriceTooLow: the price of the spot market is above the bid")
        number = self._pools.index(PoolId(pool))
        world = self.simulation.world
        if "capacity" in kinds or not world.launch(number, now=self._now):
            raise Capacity(f"InsufficientInstanceCapacity: no spot offers in {pool}")
        node = world.ids[-1]
        self.starts += 1
        machine = Machine(
            launch_id=launch_id,
            pool=pool,
            tags=spec.tags,
            created_at=self.clock.wall(),
            usd_per_hour=self._price(pool),
        )
        self.machines[node] = machine
        self._of_launch[launch_id].append(node)
        if "image" in kinds:
            world.doom(node, at=self._now + CRASH_S)
            machine.message = "the container exited with code 1: crash loop, image astraflow/node:broken"
        for kind in _BRIEF.keys() & kinds.keys():
            machine.ends_at = float(world["changes_at"][-1]) + WORKS_S
            machine.message = _BRIEF[kind]
        if "queue" in kinds:
            world.doom(node, at=math.inf)
        if _UNANSWERED & kinds.keys():
            world.doom(node, at=self._now + CRASH_S if "timeout" in kinds else math.inf)
            raise Retry("timed out: no answer within 120 s")
        return Handle(provider=KIND, id=node, launch_id=launch_id)

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> Retired:
        rows = self._rows()
        doomed = [rows[node] for node in self._alive(launch_id) if keep is None or node != keep.id]
        self.simulation.world.end(np.array(doomed, np.int64))
        self.settle()
        return Retired.GONE

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        self.settle()
        return tuple(self._seen(node) for node, machine in self.machines.items() if machine.tags.cluster == cluster)

    async def describe(self, handle: Handle) -> Instance:
        if handle.id not in self.machines:
            return Instance(handle=handle, tags=None, state=State.GONE)
        return self._seen(handle.id)

    def capabilities(self) -> Capabilities:
        delay_s = max(config.launch_delay_s for _, config in self.simulation.world.pools)
        return Capabilities(kind=KIND, simulated=("machines",), has_spot=True, notice_s=120.0, launch_delay_s=delay_s)

    async def quote(self, spec: LaunchSpec) -> Quote:
        return Quote(usd_per_hour=self._price(spec.tags.pool), launch_delay_s=300.0, source="the scenario")

    async def rehearse(self, spec: LaunchSpec) -> str:
        if any(fault.kind == "quota" for fault in self._faults(spec.tags.pool)):
            raise Quota(f"VcpuLimitExceeded: the quota of region {self.case.region(spec.tags.pool)} is used up")
        return f"the scenario would start a machine in {spec.tags.pool}"

    async def close(self) -> None:
        return None

    # What is asked of dataflow.

    async def watch_report(self) -> AsyncIterator[Report]:
        yield self.seen()

    async def tell_terms(self, terms: FleetTerms) -> None:
        """The rule keeps to it at its next look."""
        self.terms = terms

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        rows = self._rows()
        for found in self._alive(name_of(node)):
            self.machines[found].is_drained = True
            self.simulation.world.drain(rows[found], now=self._now)
        return "it drains"

    async def mint_join_token(
        self, role: str, *, pool: str = "", name: str = "", valid_s: float = 0.0, actor: str, reason: str
    ) -> JoinToken:
        return JoinToken(token=f"of {name}", id="0", expires_at=self.clock.wall() + valid_s, port=1)

    async def revoke_credential(self, role: str, name: str, *, actor: str, reason: str) -> str:
        raise InvalidInput(f"{name} holds no credential: nodes of a simulation need none")

    async def report(self) -> Report:
        """The latest; raises Unavailable before the first."""
        if self._report is None:
            raise Unavailable("the run has not begun")
        return self._report

    def seen(self) -> Report:
        """The run now, as dataflow would say it; the one before while it is stuck."""
        if self._report is None or not self.is_stuck:
            self._sequence += 1
            self._report = self._made()
        return self._report

    def _made(self) -> Report:
        world, simulation = self.simulation.world, self.simulation
        phases, speeds = world["phase"], world["speed"] * world["at_work"]
        nodes = []
        for row, node in enumerate(world.ids):
            machine = self.machines.get(node)
            if machine is None or not LAST_PENDING < phases[row] < Phase.GONE:
                continue
            pool = int(world["pool"][row])
            rate = float(speeds[row] * world.factors[pool] * simulation.busy * EPISODES_PER_GROUP)
            nodes.append(self._node(machine.launch_id, machine.pool, rate, _leaving(machine, phases[row])))
        if self.foreign:
            nodes.append(self._node(self.foreign, str(self._pools[0]), 0.0, None))
        return Report(
            run=self.case.name,
            sequence=self._sequence,
            at=self.clock.wall(),
            uptime_s=self._now,
            simulated=SIMULATED,
            flows=(),
            streams=(stream_report(simulation.consumer),),
            pools=(),
            nodes=tuple(nodes),
            events=(),
            troubles=(self.planted,) if self.planted else (),
            advice=self.advice,
        )

    def _node(self, name: str, pool: str, episodes_per_s: float, leaving: Cause | None) -> NodeReport:
        return node_report(
            name,
            pool,
            NodeState.READY if leaving is None else NodeState.DRAINING,
            episodes_per_s=episodes_per_s,
            joined_at=self.began_at,
            planted=self.planted,
            cause=leaving,
        )

    @property
    def _now(self) -> float:
        return self.clock.wall() - self.began_at

    def _rows(self) -> Mapping[str, int]:
        return {node: row for row, node in enumerate(self.simulation.world.ids)}

    def _alive(self, launch_id: str) -> Sequence[str]:
        self.settle()
        return [node for node in self._of_launch.get(launch_id, ()) if not self.machines[node].is_gone]

    def _faults(self, pool: str) -> Sequence[Fault]:
        hours = self._now / 3600
        return [fault for fault in self.case.faults if fault.pool == pool and fault.from_h <= hours < fault.until_h]

    def _price(self, pool: str) -> float:
        return dict(self.simulation.world.pools)[PoolId(pool)].bounds.price_per_hour

    def _seen(self, node: str) -> Instance:
        machine = self.machines[node]
        state, notice_at = State.GONE, None
        if not machine.is_gone:
            world, row = self.simulation.world, self._rows()[node]
            phase = int(world["phase"][row])
            if _leaving(machine, phase) is Cause.TAKEN:
                state, notice_at = State.GOING, self.began_at + float(world["taken_at"][row])
            else:
                state = State.PENDING if phase <= LAST_PENDING else State.RUNNING
        made = Instance(
            handle=Handle(provider=KIND, id=node, launch_id=machine.launch_id),
            tags=machine.tags,
            state=state,
            created_at=machine.created_at,
            region=self.case.region(machine.pool),
            notice_at=notice_at,
        )
        return replace(made, message=machine.message) if state is State.GONE else made


def _leaving(machine: Machine, phase: int) -> Cause | None:
    """What makes its node drain; None while it does not."""
    if phase != Phase.DRAINING:
        return None
    return Cause.ORDERED if machine.is_drained else Cause.TAKEN
