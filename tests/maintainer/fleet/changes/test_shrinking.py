"""A pool that follows the rule while demand rises and falls, in virtual time.

Only nodes, trainer and cloud are simulated: the recommender observes the reports, the fleet service applies its
recommendations and returns its constraints; machines are launched, drained and terminated.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.fleet.recommendations import FleetConstraints
from astraflow.contract.reports.report import NodeReport, Report
from astraflow.dataflow.reporting.recommender import Recommender
from astraflow.scaling.options import SizerOptions, Spec
from maintainer.fleet.policy_sync import PolicySync
from maintainer.fleet.state.observation import reported_recommendations
from tests import make
from tests.dataflow.running import config as dataflow_config
from tests.dataflow.running import opened
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud
from tests.maintainer.fleet.parts import POOL, START, Parts, Run, build, spec

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NODE_GROUPS_PER_S = 0.1
STEP_GROUPS, GROUP = 20, 4
BUFFER_GROUPS = 2 * STEP_GROUPS
MINUTE_S = 60.0


class Workshop(Run):
    """Run whose nodes each make 0.1 groups a second while the buffer has room; a trainer step takes 20 groups."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self.compute_s = 40.0
        """Compute time of a step: 0.5 groups a second, which five nodes make."""
        self.advisor: Recommender | None = None
        self.buffered = float(STEP_GROUPS)
        self.made = 0.0
        self.steps = 0
        self.waited_s = self.computed_s = 0.0
        """Waiting and compute time of completed steps, as trainers report them."""
        self._step_s = self._waiting_s = self._left_s = 0.0
        self._done: dict[str, tuple[float, float]] = {}
        """Node -> its groups and busy seconds."""
        self._ready: tuple[NodeReport, ...] = ()
        self.sequence = 0

    @property
    def tick_s(self) -> float:
        """Time between two decisions of the rule."""
        assert self.advisor is not None
        return self.advisor.spec.tick_s

    async def report_fleet_constraints(self, constraints: FleetConstraints) -> None:
        await super().report_fleet_constraints(constraints)
        if self.advisor is not None:
            self.advisor.set_fleet_constraints(constraints)

    def advance(self) -> Report:
        """Advances the run by one second; returns dataflow's report with its recommendations."""
        self._ready = super().report().nodes
        self._work([node.id for node in self._ready])
        self._train()
        self.sequence += 1
        if self.advisor is not None:
            self.advisor.observe(self.report())
        return self.report()

    def report(self) -> Report:
        """Returns the current report."""
        admitted = round(self.made)
        stream = make.stream_report(
            steps=self.steps,
            batch_groups=STEP_GROUPS,
            admitted=admitted,
            trained=STEP_GROUPS * self.steps,
            wait_s=self.waited_s,
            compute_s=self.computed_s,
            publish_s=0.0,
        )
        flow = replace(
            make.flow_report(),
            issued=admitted,
            tasks_queued=0,
            tasks_leased=0,
            episodes={"accepted": GROUP * admitted},
            admitted=admitted,
            dropped={},
        )
        nodes = tuple(self._with_counters(node) for node in self._ready)
        report = replace(make.report(stream, flows=(flow,), nodes=nodes), at=self.cloud.clock.wall(), nodes=nodes)
        return replace(
            report, sequence=self.sequence, recommendations=self.advisor.latest if self.advisor is not None else ()
        )

    def _work(self, nodes: list[str]) -> None:
        room = BUFFER_GROUPS - self.buffered
        produced = min(room, NODE_GROUPS_PER_S * len(nodes))
        busy = produced / (NODE_GROUPS_PER_S * len(nodes)) if nodes else 0.0
        for node in nodes:
            groups, busy_s = self._done.get(node, (0.0, 0.0))
            self._done[node] = (groups + busy * NODE_GROUPS_PER_S, busy_s + busy)
        self.buffered += produced
        self.made += produced

    def _train(self) -> None:
        if self._left_s <= 0:
            if self.buffered < STEP_GROUPS:
                self._waiting_s += 1.0
                return
            self.buffered -= STEP_GROUPS
            self._step_s = self._left_s = self.compute_s
        self._left_s -= 1.0
        if self._left_s <= 0:
            self.steps += 1
            self.computed_s += self._step_s
            self.waited_s += self._waiting_s
            self._waiting_s = 0.0

    def _with_counters(self, node: NodeReport) -> NodeReport:
        groups, busy_s = self._done.get(node.id, (0.0, 0.0))
        counters = {"episodes_done": GROUP * groups, "busy_s": busy_s}
        return replace(node, counters=counters, facts=replace(node.facts, pool=POOL))


@dataclass(kw_only=True)
class SimulationResult:
    """Observations of a simulated run."""

    parts: Parts
    run: Workshop
    policy_sync: PolicySync
    targets: list[tuple[float, int]]
    """Unix seconds and nodes, each time that the pool's target changed."""

    async def pass_minutes(self, minutes: float) -> None:
        """Runs the loops of both services in steps of one second."""
        parts, clock = self.parts, self.parts.clock
        for second in range(round(minutes * MINUTE_S)):
            clock.advance(1.0)
            parts.fleet.observation.update(self.run.advance())
            if second % 5 == 0:
                await parts.reconciler.check_nodes()
                await parts.follower.follow()
                await parts.actuator.run_due_steps()
                await self.policy_sync.sync()
            if second % 60 == 0:
                await parts.reconciler.sweep()
            target = parts.fleet.pool(POOL).target
            if not self.targets or self.targets[-1][1] != target:
                self.targets.append((clock.wall(), target))

    @property
    def ready(self) -> int:
        """Ready nodes."""
        return self.parts.states().get("ready", 0)

    @property
    def turns(self) -> int:
        """Number of direction changes of the target."""
        ways = [after[1] > before[1] for before, after in pairwise(self.targets)]
        return sum(1 for before, after in pairwise(ways) if before != after)


@asynccontextmanager
async def followed(tmp_path: Path) -> AsyncIterator[SimulationResult]:
    """Yields a pool of six machines in mode `on`, with dataflow's rule."""
    clock = ManualClock(START)
    cloud = Cloud(clock, boot_s=20.0, end_s=5.0)
    run = Workshop(cloud)
    parts = await build(tmp_path, clock=clock, cloud=cloud, run=run, pool=spec(min_nodes=1, max_nodes=30))
    async with opened(tmp_path / "dataflow", dataflow_config()) as (dataflow, journal):
        spec_of_rule = Spec(options=SizerOptions(), pools={})
        run.advisor = Recommender(spec_of_rule, journal=journal, events=dataflow.events)
        parts.fleet.observation._recommendations_of = reported_recommendations
        await parts.want(6)
        yield SimulationResult(
            parts=parts, run=run, policy_sync=PolicySync(parts.fleet, parts.fleet_manager, run), targets=[]
        )


async def test_after_the_demand_falls_the_pool_shrinks_once_and_stays(tmp_path: Path) -> None:
    async with followed(tmp_path) as course:
        await course.pass_minutes(20)
        steady = course.ready
        assert 5 <= steady <= 7

        course.run.compute_s = 20.0
        await course.pass_minutes(25)
        grown, waited_s = course.ready, course.run.waited_s
        assert 10 <= grown <= 13

        course.run.compute_s = 40.0
        fell_at = course.parts.clock.wall()
        await course.pass_minutes(40)
        assert steady <= course.ready <= steady + 1
        assert course.run.waited_s == waited_s, "retiring nodes caused no wait"
        assert course.turns == 1, course.targets
        downs = [at - fell_at for at, _ in course.targets if at > fell_at]
        assert downs[0] >= course.run.tick_s * 10, "the surplus must last first"
        assert downs[-1] <= 20 * MINUTE_S
        assert len(downs) == 2, "half of the surplus at a time, ten minutes apart"

        instances = [record.instance for record in course.parts.ledger.records.values()]
        ended_instances = [instance for instance in instances if instance.state is InstanceState.GONE]
        assert len(ended_instances) == grown - course.ready
        assert all(
            instance.draining_at is not None and instance.draining_at < (instance.retiring_at or 0.0)
            for instance in ended_instances
        )
        assert len(course.run.cloud.alive()) == course.ready
