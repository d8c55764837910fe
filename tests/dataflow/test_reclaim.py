"""Nodes that keep tasks, beside an honest node and a trainer: training goes on, whatever they report."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.ids import FlowId, NodeId, PolicyId, PoolId, TaskId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.reports.report import Report
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Lease, Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.issuing.patience import FIRST_S, longest_s
from astraflow.dataflow.issuing.patience import FIRST_TASKS as FIRST_WAITING
from astraflow.dataflow.issuing.shares import FIRST_TASKS
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.service import build_run
from astraflow.dataflow.storage.null_journal import NullJournal
from tests import make
from tests.dataflow.running import archive_in, config, facts
from tests.dataflow.test_service import assert_balanced, step_of
from tests.fakes.clock import ManualClock, settle

pytestmark = pytest.mark.anyio

SOLVER, FLOW = PolicyId("solver"), FlowId("train-solver")
TICK_S = 0.25
EPISODE_S = 0.5
SLOTS = 16


@dataclass(slots=True)
class Cluster:
    """A run, and what happened in it."""

    run: Run
    clock: ManualClock
    nodes: NodeOperations
    trainers: TrainerOperations
    version: int = 0
    stepped_at: list[float] = field(default_factory=list)
    returned: dict[str, int] = field(default_factory=dict)

    def report(self) -> Report:
        return build_report(self.run, name="test", sequence=1, now=self.clock.now(), wall=0, uptime_s=0)

    def join(self, name: str, *, pool: str = "honest", **more: Any) -> NodeId:
        node = self.nodes.membership.join(replace(facts(name), pool=PoolId(pool), **more)).id
        self.nodes.membership.heartbeat(NodeStatus(node=node, running=(), versions={SOLVER: Version(self.version)}))
        return node

    async def push(self, node: NodeId, tasks: list[Task], *, failure: Boundary | None = None) -> None:
        episodes = [_episode(task, node, failure, self.version) for task in tasks]
        await self.nodes.results.push(node, episodes)


def _episode(task: Task, node: NodeId, failure: Boundary | None, version: int) -> Episode:
    plain = make.episode(task.id, node=node, version=version)
    if failure is None:
        return plain
    return replace(plain, trajectories=(), failure=Failure(boundary=failure, message="no"), attempt=task.attempt)


@asynccontextmanager
async def cluster(folder: Path, **changed: Any) -> AsyncIterator[Cluster]:
    settings: dict[str, Any] = {"batch_groups": 8, "max_staleness": 2, "group_size": 4, "lease_s": 10.0} | changed
    folder.mkdir(exist_ok=True)
    with closing(archive_in(folder)) as archive:
        clock = ManualClock()
        run = build_run(config(**settings), journal=NullJournal(), archive=archive, clock=clock)
        run.restore(grace_s=1)
        fleet = Cluster(run, clock, NodeOperations(run), TrainerOperations(run))
        fleet.trainers.attach(SOLVER, Version(0), backend="test", is_simulated=True)
        yield fleet


async def honest_node(fleet: Cluster, name: str) -> None:
    """Runs `SLOTS` episodes at once, as long as the run lasts."""
    node, running = fleet.join(name), dict[TaskId, tuple[Task, float]]()
    waiting: asyncio.Task[Lease] | None = None
    while True:
        now = fleet.clock.now()
        status = NodeStatus(node=node, running=tuple(running), versions={SOLVER: Version(fleet.version)})
        fleet.nodes.membership.heartbeat(status)
        done = [task for task, since in running.values() if now - since >= EPISODE_S]
        if done:
            await fleet.push(node, done)
            fleet.returned[name] = fleet.returned.get(name, 0) + len(done)
            running = {task: entry for task, entry in running.items() if entry[0] not in done}
        if waiting is not None and waiting.done():
            running |= {task.id: (task, now) for task in waiting.result().tasks}
            waiting = None
        if waiting is None and len(running) < SLOTS:
            versions = {SOLVER: Version(fleet.version)}
            free = SLOTS - len(running)
            waiting = asyncio.create_task(fleet.nodes.leasing.lease(node, free, versions=versions, wait_s=1e6))
        await fleet.clock.sleep(TICK_S)


async def trainer(fleet: Cluster) -> None:
    while True:
        batch = await fleet.trainers.pull(SOLVER, Version(fleet.version), wait_s=1e6)
        assert batch is not None
        fleet.version += 1
        await fleet.trainers.report_step(step_of(batch))
        fleet.stepped_at.append(fleet.clock.now())


async def ticks(fleet: Cluster) -> None:
    while True:
        fleet.nodes.membership.tick()
        await fleet.clock.sleep(TICK_S)


async def simulated(fleet: Cluster, seconds: float, *work: Callable[[Cluster], Any]) -> None:
    """Runs a trainer, the ticks of dataflow and this work for some simulated seconds."""
    tasks = [asyncio.create_task(each(fleet)) for each in (trainer, ticks, *work)]
    try:
        for _ in range(round(seconds / TICK_S)):
            await fleet.clock.pass_time(TICK_S)
            await settle()
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def first(fleet: Cluster) -> Any:
    return honest_node(fleet, "first")


def second(fleet: Cluster) -> Any:
    return honest_node(fleet, "second")


class Hostile:
    """Asks for all tasks every tick, and does not return them."""

    def __init__(self, *, names: int = 1, tasks_per_result: int = 0) -> None:
        self._names = names
        self._each = tasks_per_result

    async def __call__(self, fleet: Cluster) -> None:
        ids = [fleet.join(f"hostile-{number}", pool="hostile") for number in range(self._names)]
        held: dict[NodeId, list[Task]] = {node: [] for node in ids}
        while True:
            for node in list(held):
                held = await self.turn(fleet, node, held)
            await fleet.clock.sleep(TICK_S)

    async def turn(self, fleet: Cluster, node: NodeId, held: dict[NodeId, list[Task]]) -> dict[NodeId, list[Task]]:
        running = tuple(task.id for task in held[node])
        versions = {SOLVER: Version(fleet.version)}
        fleet.nodes.membership.heartbeat(NodeStatus(node=node, running=running, versions=versions))
        held[node] += (await fleet.nodes.leasing.lease(node, 4096, versions=versions, wait_s=0.0)).tasks
        return await self.act(fleet, node, held)

    async def act(self, fleet: Cluster, node: NodeId, held: dict[NodeId, list[Task]]) -> dict[NodeId, list[Task]]:
        if self._each and len(held[node]) > self._each:
            await fleet.push(node, [held[node].pop()])
        return held


class Rejoining(Hostile):
    """Joins again under its name or another one, and claims what it held."""

    def __init__(self, *, new_names: bool) -> None:
        super().__init__()
        self._new_names = new_names
        self._turns = 0

    async def act(self, fleet: Cluster, node: NodeId, held: dict[NodeId, list[Task]]) -> dict[NodeId, list[Task]]:
        self._turns += 1
        if self._turns % 4:
            return held
        tasks = held[node]
        name = f"hostile-{self._turns}" if self._new_names else "hostile-0"
        if self._new_names:
            fleet.nodes.membership.leave(node, "a trick")
        return {fleet.join(name, pool="hostile", running=tuple(task.id for task in tasks)): tasks}


class HandingBack(Hostile):
    """Hands all tasks back at once, and leases again."""

    async def act(self, fleet: Cluster, node: NodeId, held: dict[NodeId, list[Task]]) -> dict[NodeId, list[Task]]:
        partials = [make.partial(task.id, attempt=task.attempt, nothing=True) for task in held[node]]
        if partials:
            await fleet.nodes.results.hand_back(node, partials)
        return {node: []}


class Failing(Hostile):
    """Fails every task at once."""

    async def act(self, fleet: Cluster, node: NodeId, held: dict[NodeId, list[Task]]) -> dict[NodeId, list[Task]]:
        if held[node]:
            await fleet.push(node, held[node], failure=Boundary.ENGINE)
        return {node: []}


class Lying(Hostile):
    """Reports tasks of others as running, and versions that do not exist."""

    async def turn(self, fleet: Cluster, node: NodeId, held: dict[NodeId, list[Task]]) -> dict[NodeId, list[Task]]:
        flow = fleet.run.flows[FLOW]
        every = tuple(task for group in flow.open_groups.values() for task in group.open_tasks())
        versions = {SOLVER: Version(fleet.version + random.Random(fleet.version).randint(0, 9))}
        fleet.nodes.membership.heartbeat(NodeStatus(node=node, running=every, versions=versions))
        capacity = 4096 if round(fleet.clock.now() / TICK_S) % 2 else 1
        held[node] += (await fleet.nodes.leasing.lease(node, capacity, versions=versions, wait_s=0.0)).tasks
        return held


HOSTILE = {
    "holds all": Hostile(),
    "twenty names of one pool": Hostile(names=20),
    "returns one result now and then": Hostile(tasks_per_result=20),
    "joins again under its name": Rejoining(new_names=False),
    "joins again under other names": Rejoining(new_names=True),
    "hands back and leases again": HandingBack(),
    "fails everything": Failing(),
    "claims tasks and versions of others": Lying(),
}


@pytest.mark.parametrize(("kind", "max_staleness"), [*((kind, 0) for kind in HOSTILE), ("twenty names of one pool", 2)])
async def test_a_hostile_node_does_not_stop_training(tmp_path: Path, kind: str, max_staleness: int) -> None:
    async with cluster(tmp_path, max_staleness=max_staleness, max_attempts=100) as fleet:
        hostile, began_at = HOSTILE[kind], fleet.clock.now()
        await simulated(fleet, 30, hostile, first, second)
        times = [began_at, *fleet.stepped_at, fleet.clock.now()]
        assert max(after - before for before, after in itertools.pairwise(times)) <= 10.0
        assert min(fleet.returned["first"], fleet.returned["second"]) > 50
        assert_balanced(fleet.report())


async def test_an_honest_pair_is_as_fast_beside_a_node_that_holds_tasks(tmp_path: Path) -> None:
    steps = {}
    for name, work in {"alone": (), "beside": (Hostile(),)}.items():
        async with cluster(tmp_path / name) as fleet:
            await simulated(fleet, 30, *work, first, second)
            steps[name] = len(fleet.stepped_at)
    assert steps["beside"] >= 0.7 * steps["alone"], "the node holds tasks for the first seconds only"


async def test_a_node_that_hung_is_named_in_events_problems_and_its_report(tmp_path: Path) -> None:
    async with cluster(tmp_path) as fleet:
        await simulated(fleet, 30, Hostile(), first)
        report = fleet.report()
        (hostile,) = [node for node in report.nodes if node.facts.pool == "hostile"]
        assert hostile.is_on_probation
        assert hostile.results == 0
        assert hostile.lease_expiries > FIRST_TASKS
        assert ("node_on_probation", "hostile-0") in [(problem.cause, problem.subject) for problem in report.problems]
        assert any(event.kind.value == "leases_expired" and event.subject == hostile.id for event in report.events)
        (honest,) = [node for node in report.nodes if node.facts.pool == "honest"]
        assert (honest.is_on_probation, honest.lease_expiries) == (False, 0)


async def test_results_make_a_node_that_hung_equal_to_others(tmp_path: Path) -> None:
    async with cluster(tmp_path) as fleet:
        await simulated(fleet, 15, Hostile(), first)
        node = fleet.join("hostile-0", pool="hostile")
        assert fleet.run.shares.is_on_probation(node)
        await simulated(fleet, 15, first, lambda fleet: honest_node(fleet, "hostile-0"))
        assert not fleet.run.shares.is_on_probation(fleet.join("hostile-0"))
        assert fleet.returned["hostile-0"] > 50


async def test_before_anything_was_measured_each_waiting_node_gets_a_few_tasks_once(tmp_path: Path) -> None:
    async with cluster(tmp_path, lease_s=1e6) as fleet:
        versions = {SOLVER: Version(0)}
        await fleet.nodes.leasing.lease(fleet.join("slow"), 4096, versions=versions, wait_s=0.0)
        calls = []
        for name in ("first", "second"):
            calls.append(
                asyncio.create_task(fleet.nodes.leasing.lease(fleet.join(name), 4096, versions=versions, wait_s=1e6))
            )
            await settle()
        fleet.clock.advance(FIRST_S)
        for _ in range(5):
            fleet.nodes.membership.tick()
            await settle()
        assert [len(call.result().tasks) for call in calls] == [FIRST_WAITING] * 2
        assert not fleet.run.shares.is_on_probation(NodeId("slow.1"))
        again = asyncio.create_task(fleet.nodes.leasing.lease(NodeId("first.2"), 4096, versions=versions, wait_s=1e6))
        await settle()
        fleet.nodes.membership.tick()
        await settle()
        assert not again.done()
        fleet.run.stop()
        await again


async def test_the_late_result_of_a_former_holder_counts_if_it_is_first(tmp_path: Path) -> None:
    async with cluster(tmp_path) as fleet:
        slow = fleet.join("slow", pool="other")
        versions = {SOLVER: Version(0)}
        held = (await fleet.nodes.leasing.lease(slow, 4096, versions=versions, wait_s=0.0)).tasks
        await simulated(fleet, 6, first)
        open_tasks = [task for group in fleet.run.flows[FLOW].open_groups.values() for task in group.open_tasks()]
        late = [task for task in held if task.id in open_tasks]
        assert late
        outcomes = await fleet.nodes.results.push(slow, [_episode(task, slow, None, 0) for task in late])
        assert set(outcomes) == {"accepted"}


async def test_without_others_that_wait_a_task_is_kept_for_the_time_limit_of_an_episode(tmp_path: Path) -> None:
    async with cluster(tmp_path, lease_s=30.0) as fleet:
        node = fleet.join("lonely", episode_timeout_s=7_200.0)
        held = (await fleet.nodes.leasing.lease(node, 4, versions={SOLVER: Version(0)}, wait_s=0.0)).tasks
        status = NodeStatus(node=node, running=tuple(task.id for task in held), versions={SOLVER: Version(0)})
        limit_s = longest_s(7_200.0, ceiling_s=fleet.run.episode_ceiling_s)

        began_at = fleet.clock.now()

        def heartbeats_until(second: float) -> None:
            second += began_at
            while fleet.clock.now() < second:
                fleet.clock.advance(min(20.0, second - fleet.clock.now()))
                fleet.nodes.membership.heartbeat(status)
                fleet.nodes.membership.tick()

        heartbeats_until(limit_s - 30)
        assert fleet.run.flows[FLOW].leases.held_by(node) == 4
        heartbeats_until(limit_s + 20)
        assert fleet.run.flows[FLOW].leases.held_by(node) == 0
        assert fleet.report().flows[0].leases_expired == 4


async def test_of_several_calls_that_wait_only_the_newest_gets_tasks(tmp_path: Path) -> None:
    async with cluster(tmp_path) as fleet:
        node = fleet.join("greedy")
        versions = {SOLVER: Version(0)}
        fleet.run.pause_flow(FLOW, is_paused=True, actor="a test", reason="no tasks yet")
        calls = [
            asyncio.create_task(fleet.nodes.leasing.lease(node, 4, versions=versions, wait_s=1e6)) for _ in range(100)
        ]
        await settle()
        await settle()
        assert sum(call.done() for call in calls) == 99
        fleet.run.pause_flow(FLOW, is_paused=False, actor="a test", reason="tasks")
        assert len((await calls[-1]).tasks) == 4
