"""Several policies: each has its own batches, bound and back-pressure; a stalled trainer stops no other policy."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.ids import NodeId, PolicyId, TaskId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.config import DataflowConfig, FlowConfig, StreamConfig
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.service import build_run
from astraflow.dataflow.storage.journal import Journal
from tests import make
from tests.dataflow.kills import commits_of
from tests.dataflow.running import archive_in, committing, facts
from tests.fakes.clock import ManualClock
from tests.stateful import machine_test

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")
STEP_S, PATIENCE_S = 1.0, 30.0
GROUP_SIZE = 2
PLENTY = 1000

SAME = StreamConfig(batch_groups=4, max_staleness=2)
SHARED = {"kind": "solve_and_verify", "solver": SOLVER, "verifier": VERIFIER}


def config(
    *,
    solver: StreamConfig = SAME,
    verifier: StreamConfig = SAME,
    shared: bool,
    when_full: Literal["shed", "wait"] = "shed",
    filters: tuple[dict[str, Any], ...] = ({"kind": "keep_all"},),
    pacing: bool = False,
) -> DataflowConfig:
    """Returns a run with two policies in one flow, or in a flow each; only the staleness gates limit it by default."""
    solver, verifier = (stream.model_copy(update={"pacing": pacing}) for stream in (solver, verifier))
    alone = {f"train-{policy}": {"kind": "single_turn", "policy": policy} for policy in (SOLVER, VERIFIER)}
    return DataflowConfig(
        flows={
            name: FlowConfig(
                dataset={"kind": "scripted"},
                workflow=workflow,
                reward={"kind": "exact_match"},
                group_size=GROUP_SIZE,
                when_full=when_full,
                filters=filters,
            )
            for name, workflow in ({"train": SHARED} if shared else alone).items()
        },
        streams={SOLVER: solver, VERIFIER: verifier},
        models={policy: {"kind": "scripted"} for policy in (SOLVER, VERIFIER)},
        lease_s=1e6,
    )


@dataclass(slots=True, kw_only=True)
class World:
    """Run with one node, whose weights are always the newest, and a trainer for each policy."""

    run: Run
    nodes: NodeOperations
    trainers: TrainerOperations
    clock: ManualClock
    node: NodeId
    versions: dict[PolicyId, int]
    """Versions of the trainers."""

    @classmethod
    def of(
        cls,
        settings_: DataflowConfig,
        journal: Journal,
        archive: Archive,
        clock: ManualClock,
        *,
        versions: dict[PolicyId, int],
        running: tuple[TaskId, ...] = (),
    ) -> "World":
        run = build_run(settings_, journal=journal, archive=archive, clock=clock)
        run.restore(grace_s=0)
        nodes = NodeOperations(run)
        node = nodes.membership.join(facts(running=running)).id
        return cls(run=run, nodes=nodes, trainers=TrainerOperations(run), clock=clock, node=node, versions=versions)

    async def lease(self, tasks: int = PLENTY, *, served: Mapping[PolicyId, Version] | None = None) -> list[Task]:
        served = {policy: Version(version) for policy, version in self.versions.items()} if served is None else served
        return list((await self.nodes.leasing.lease(self.node, tasks, versions=served, wait_s=0)).tasks)

    async def push(self, tasks: list[Task], *, reward: float | None = None) -> None:
        """Pushes a trajectory of the current weights for every policy of the tasks' flow."""
        episodes = [self.episode(task, reward=reward) for task in tasks]
        assert await self.nodes.results.push(self.node, episodes) == ["accepted"] * len(tasks)

    def episode(self, task: Task, *, reward: float | None = None) -> Episode:
        trajectories = tuple(
            make.trajectory(
                policy=policy,
                version=self.versions[policy],
                reward=float(task.member % 2) if reward is None else reward,
            )
            for policy in self.run.flows[task.flow].policies
        )
        return Episode(task=task.id, node=self.node, trajectories=trajectories)

    async def roll_out(self) -> int:
        """Leases and pushes everything that the gates allow; returns the number of groups."""
        tasks = await self.lease()
        await self.push(tasks)
        return len(tasks) // GROUP_SIZE

    async def step(self, policy: PolicyId) -> Batch | None:
        """Performs the trainer's next step, if there is a batch for it."""
        batch = await self.trainers.pull(policy, Version(self.versions[policy]), wait_s=0)
        if batch is not None:
            self.versions[policy] += 1
            await self.trainers.report_step(
                StepReport(
                    batch=batch.id,
                    policy=policy,
                    version=Version(self.versions[policy]),
                    wait_s=0,
                    compute_s=STEP_S,
                    publish_s=0,
                )
            )
        return batch

    def wait(self, duration_s: float) -> None:
        self.nodes.membership.tick()
        self.clock.advance(duration_s)
        self.nodes.membership.tick()

    def report(self) -> Report:
        report = build_report(self.run, name="test", sequence=1, now=self.clock.now(), wall=0, uptime_s=0)
        assert_balanced(report)
        return report

    def stream(self, policy: PolicyId) -> StreamReport:
        return next(stream for stream in self.report().streams if stream.policy == policy)

    def dropped(self, policy: PolicyId) -> dict[str, int]:
        return {reason: count for reason, count in self.stream(policy).groups.dropped.items() if count}

    def flow(self, name: str = "train") -> FlowReport:
        return next(flow for flow in self.report().flows if flow.id == name)


def assert_balanced(report: Report) -> None:
    for flow in report.flows:
        assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())
    for stream in report.streams:
        spread = stream.groups.accounted
        assert stream.groups.admitted == spread
        assert stream.issue_headroom >= 0
        assert stream.groups.buffered + stream.groups.in_batch <= (stream.max_staleness + 1) * stream.batch_groups


@asynccontextmanager
async def world(folder: Path, settings_: DataflowConfig) -> AsyncIterator[World]:
    journal = Journal(folder / "journal.sqlite")
    async with committing(journal):
        with closing(archive_in(folder)) as archive:
            yield World.of(settings_, journal, archive, ManualClock(), versions={SOLVER: 0, VERIFIER: 0})


def rows_by_policy(batch: Batch | None) -> tuple[set[str], int]:
    assert batch is not None
    return {row.trajectory.policy for row in batch.rows}, len(batch.rows)


@pytest.mark.anyio
async def test_each_policy_has_its_own_batches_and_staleness_bound(tmp_path: Path) -> None:
    solver = StreamConfig(batch_groups=4, max_staleness=1)
    verifier = StreamConfig(batch_groups=3, max_staleness=3)
    async with world(tmp_path, config(solver=solver, verifier=verifier, shared=False)) as it:
        await it.roll_out()
        assert it.flow("train-solver").issued == 2 * 4
        assert it.flow("train-verifier").issued == 4 * 3
        assert rows_by_policy(await it.step(SOLVER)) == ({"solver"}, 4 * GROUP_SIZE)
        assert rows_by_policy(await it.step(VERIFIER)) == ({"verifier"}, 3 * GROUP_SIZE)


@pytest.mark.anyio
async def test_a_shared_flow_feeds_both_policies_up_to_the_stricter_bound(tmp_path: Path) -> None:
    solver = StreamConfig(batch_groups=4, max_staleness=1)
    verifier = StreamConfig(batch_groups=3, max_staleness=3)
    async with world(tmp_path, config(solver=solver, verifier=verifier, shared=True)) as it:
        assert await it.roll_out() == 2 * 4
        assert rows_by_policy(await it.step(SOLVER)) == ({"solver"}, 4 * GROUP_SIZE)
        assert rows_by_policy(await it.step(VERIFIER)) == ({"verifier"}, 3 * GROUP_SIZE)
        assert await it.roll_out() == min(3 * 4, 5 * 3) - 2 * 4


@pytest.mark.long
@pytest.mark.anyio
async def test_a_stalled_trainer_with_its_own_flow_stops_only_its_stream(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=False, when_full="wait")) as it:
        for step in range(1, 31):
            await it.roll_out()
            assert await it.step(VERIFIER) is not None
            assert it.flow("train-solver").issued == (2 + 1) * 4
            assert it.flow("train-verifier").issued == (step - 1 + 2 + 1) * 4
        assert it.dropped(SOLVER) == it.dropped(VERIFIER) == {}
        assert await it.step(SOLVER) is not None
        assert await it.roll_out() == 4 + 4


@pytest.mark.long
@pytest.mark.anyio
async def test_a_shared_flow_continues_without_a_stalled_trainer_up_to_its_bound(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True)) as it:
        while await it.roll_out() or await it.step(VERIFIER):
            pass
        assert it.versions[VERIFIER] == 2 + 1
        it.wait(PATIENCE_S + 1)
        for step in range(4, 34):
            assert await it.roll_out() == (4 if step > 4 else (2 + 1) * 4)
            assert await it.step(VERIFIER) is not None
        solver, verifier = it.stream(SOLVER), it.stream(VERIFIER)
        assert (verifier.training.steps, it.dropped(VERIFIER)) == (33, {})
        assert (solver.groups.buffered, solver.groups.in_batch) == ((2 + 1) * 4, 0)
        assert it.dropped(SOLVER) == {"full": 30 * 4 + 8}
        assert it.report().events[-1].values["silent_s"] == pytest.approx(31, abs=0.5)


@pytest.mark.long
@pytest.mark.anyio
async def test_pacing_limits_a_shared_flow_until_a_trainer_stalls(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True, pacing=True)) as it:
        for _ in range(3):
            await it.roll_out()
            assert await it.step(SOLVER) is not None
            assert await it.step(VERIFIER) is not None
        while await it.roll_out():
            pass
        assert (
            it.stream(SOLVER).groups.buffered == it.stream(VERIFIER).groups.buffered == 6
        )  # the next batch of 4, and its margin of 2
        assert it.stream(SOLVER).issue_headroom > 0
        it.wait(PATIENCE_S + 1)
        for _ in range(6):
            assert await it.step(VERIFIER) is not None
            await it.roll_out()
        assert it.stream(SOLVER).groups.buffered == (2 + 1) * 4
        assert it.dropped(SOLVER)["full"] > 0
        assert it.dropped(VERIFIER) == {}


@pytest.mark.long
@pytest.mark.anyio
async def test_a_shared_flow_waits_for_a_slower_trainer_and_drops_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True)) as it:
        for _ in range(20):
            it.wait(PATIENCE_S - 1)
            await it.roll_out()
            assert await it.step(SOLVER) is not None
            while await it.step(VERIFIER) is not None:
                pass
        assert it.dropped(SOLVER) == it.dropped(VERIFIER) == {}
        assert it.versions == {SOLVER: 20, VERIFIER: 22}


@pytest.mark.anyio
async def test_a_flow_with_patience_waits_for_a_stalled_trainer(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True, when_full="wait")) as it:
        while await it.roll_out() or await it.step(VERIFIER):
            pass
        it.wait(100 * PATIENCE_S)
        assert await it.roll_out() == 0
        assert it.stream(VERIFIER).issue_headroom == (2 + 1) * 4


@pytest.mark.anyio
async def test_a_trainer_is_stalled_after_a_multiple_of_its_usual_step_time(tmp_path: Path) -> None:
    steps = StreamConfig(batch_groups=4, max_staleness=2, stalled_after_steps=5, stalled_after_s=2 * STEP_S)
    async with world(tmp_path, config(solver=steps, shared=True)) as it:
        await it.roll_out()
        assert await it.step(SOLVER) is not None
        while await it.roll_out() or await it.step(VERIFIER):
            pass
        it.wait(5 * STEP_S)
        assert await it.roll_out() == 0
        it.wait(0.1)
        assert await it.roll_out() > 0


@pytest.mark.anyio
async def test_a_trainer_that_waits_for_rollouts_is_not_stalled(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True)) as it:
        out = await it.lease()
        assert len(out) == (2 + 1) * 4 * GROUP_SIZE
        it.wait(10 * PATIENCE_S)
        assert it.stream(SOLVER).issue_headroom == 0
        assert await it.lease() == []
        assert [event.kind.value for event in it.report().events] == ["node_joined"]


@pytest.mark.anyio
async def test_a_resumed_trainer_gets_the_buffered_groups_and_is_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True)) as it:
        while await it.roll_out() or await it.step(VERIFIER):
            pass
        it.wait(PATIENCE_S + 1)
        spare = await it.lease()
        assert await it.step(SOLVER) is not None
        assert not it.run.stall_detector.is_stalled(SOLVER)
        await it.push(spare)
        assert it.dropped(SOLVER) == {"full": len(spare) // GROUP_SIZE}
        for _ in range(2 + 1):
            assert await it.step(VERIFIER) is not None
        assert await it.roll_out() == 4
        assert await it.step(SOLVER) is not None
        it.wait(0)
        assert await it.roll_out() == 4
        assert [event.kind.value for event in it.report().events][-2:] == ["trainer_stalled", "trainer_resumed"]
        assert set(it.dropped(SOLVER)) == {"full"}


@pytest.mark.anyio
async def test_results_of_leased_tasks_are_accepted_into_a_full_stream(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True)) as it:
        out = await it.lease()
        it.wait(10 * PATIENCE_S)
        await it.push(out)
        assert it.stream(SOLVER).groups.buffered == it.stream(VERIFIER).groups.buffered == (2 + 1) * 4


@pytest.mark.anyio
async def test_filters_refuse_spare_shares_without_opening_the_gate(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True, filters=({"kind": "informative"},))) as it:
        while await it.roll_out() or await it.step(VERIFIER):
            pass
        it.wait(PATIENCE_S + 1)
        dull = await it.lease()
        await it.push(dull, reward=1.0)
        groups = len(dull) // GROUP_SIZE
        assert it.flow().dropped == {"informative": groups}
        assert (it.stream(SOLVER).issue_headroom, it.dropped(SOLVER)) == (0, {})
        assert it.stream(VERIFIER).issue_headroom == groups


@pytest.mark.anyio
async def test_a_node_with_old_weights_does_not_cause_dropped_groups(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True)) as it:
        await it.roll_out()
        assert await it.step(SOLVER) is not None
        assert await it.step(VERIFIER) is not None
        it.wait(PATIENCE_S + 1)
        assert it.run.stall_detector.is_stalled(SOLVER)
        behind = {SOLVER: Version(0), VERIFIER: Version(1)}
        assert await it.lease(served=behind) == []
        assert len(await it.lease()) == 4 * GROUP_SIZE


@pytest.mark.anyio
async def test_a_trainer_that_stalls_before_it_publishes_an_announced_version_stops_no_other(tmp_path: Path) -> None:
    async with world(tmp_path, config(shared=True)) as it:
        while await it.roll_out():
            pass
        assert await it.trainers.pull(SOLVER, Version(0), wait_s=0) is not None
        assert await it.trainers.pull(SOLVER, Version(1), wait_s=0, unacknowledged=1) is not None  # not published yet
        it.wait(PATIENCE_S + 1)
        assert it.run.stall_detector.is_stalled(SOLVER)
        assert await it.step(VERIFIER) is not None

        assert len(await it.lease(served={SOLVER: Version(0), VERIFIER: Version(1)})) == 4 * GROUP_SIZE


@pytest.mark.long
@pytest.mark.anyio
async def test_staleness_zero_is_a_barrier_for_both_trainers_and_the_node(tmp_path: Path) -> None:
    synchronous = StreamConfig(batch_groups=4, max_staleness=0)
    async with world(tmp_path, config(solver=synchronous, verifier=synchronous, shared=True, when_full="wait")) as it:
        for version in range(10):
            out = await it.lease()
            assert len(out) == 4 * GROUP_SIZE
            await it.push(out[:-1])
            assert await it.step(SOLVER) is None
            assert await it.step(VERIFIER) is None
            await it.push(out[-1:])
            for policy in (SOLVER, VERIFIER):
                assert await it.lease() == []
                batch = await it.step(policy)
                assert batch is not None
                assert {row.trajectory.oldest_version for row in batch.rows} == {version}
            assert await it.lease(served={SOLVER: Version(version), VERIFIER: Version(version + 1)}) == []
            it.nodes.membership.heartbeat(NodeStatus(node=it.node, running=(), versions={SOLVER: Version(version + 1)}))
        assert it.flow().issued == 10 * 4
        assert it.dropped(SOLVER) == it.dropped(VERIFIER) == {}


@pytest.mark.anyio
async def test_groups_issued_for_new_weights_are_not_leased_to_nodes_with_old_ones(tmp_path: Path) -> None:
    synchronous = StreamConfig(batch_groups=4, max_staleness=0)
    settings_ = config(solver=synchronous, verifier=synchronous, shared=True, when_full="wait")
    async with world(tmp_path, settings_) as it:
        behind = it.nodes.membership.join(facts("behind")).id
        await it.roll_out()
        await it.step(SOLVER)
        await it.step(VERIFIER)
        (first,) = await it.lease(1)
        old, new = ({SOLVER: Version(1), VERIFIER: Version(version)} for version in (0, 1))
        assert (await it.nodes.leasing.lease(behind, 1, versions=old, wait_s=0)).tasks == ()
        (second,) = (await it.nodes.leasing.lease(behind, 1, versions=new, wait_s=0)).tasks
        assert first.group == second.group


class TwoTrainersUnderFire(RuleBasedStateMachine):
    """One flow with two policies that differ in everything; trainers stall at random, dataflow is killed."""

    config = config(
        solver=StreamConfig(batch_groups=2, max_staleness=2),
        verifier=StreamConfig(batch_groups=3, max_staleness=1),
        shared=True,
        filters=({"kind": "informative"},),
    )

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.held: list[Task] = []
        self.versions = {SOLVER: 0, VERIFIER: 0}
        self._open()

    def teardown(self) -> None:
        self._close()
        self.loop.close()
        shutil.rmtree(self.folder)

    @rule(capacity=st.integers(1, 8))
    def lease_tasks(self, capacity: int) -> None:
        self.held += self.loop.run(self.world.lease(capacity))

    @rule(data=st.data(), reward=st.sampled_from([None, None, 1.0]))
    def push_some_results(self, data: st.DataObject, reward: float | None) -> None:
        if self.held:
            task = data.draw(st.sampled_from(self.held))
            self.held.remove(task)
            self.loop.run(self.world.push([task], reward=reward))

    @rule(reward=st.sampled_from([None, None, 1.0]))
    def push_all_results(self, reward: float | None) -> None:
        self.lease_tasks(8)
        self.loop.run(self.world.push(self.held, reward=reward))
        self.held = []

    @rule(policy=st.sampled_from([SOLVER, VERIFIER]))
    def take_a_step(self, policy: PolicyId) -> None:
        before = self.versions[policy]
        batch = self.loop.run(self.world.step(policy))
        for row in batch.rows if batch else ():
            born = row.trajectory.oldest_version
            assert row.trajectory.policy == policy
            assert born is not None and before - born <= self.config.streams[policy].max_staleness

    @rule()
    def advance_time(self) -> None:
        self.world.wait(PATIENCE_S + 1)

    @rule(policy=st.sampled_from([SOLVER, VERIFIER]))
    def train_only_one_policy(self, policy: PolicyId) -> None:
        """Checks that another step is always possible with working nodes, once the other trainer's patience is over."""
        before = self.versions[policy]
        for _ in range(20):
            self.push_all_results(None)
            self.take_a_step(policy)
            if self.versions[policy] > before:
                return
            self.advance_time()
        pytest.fail(f"the trainer of {policy} is stopped: {self.world.report().streams}")

    @rule()
    def kill_dataflow(self) -> None:
        """Restarts dataflow from a copy of its files, made before the old process can close them."""
        fresh = Path(tempfile.mkdtemp())
        with self.writing:
            shutil.copytree(self.folder, fresh, dirs_exist_ok=True)
        self._close()
        shutil.rmtree(self.folder)
        self.folder = fresh
        self._open()

    @invariant()
    def counts_balance_and_bounds_hold(self) -> None:
        if not hasattr(self, "world"):
            return
        for stream in self.world.report().streams:
            assert stream.version == stream.training.steps == self.versions[stream.policy]
            assert stream.groups.trained == stream.training.steps * stream.batch_groups
            assert set(stream.groups.dropped) <= {"full", "stale"}

    def _open(self) -> None:
        self.journal = Journal(self.folder / "journal.sqlite")
        self.writing = commits_of(self.journal)
        running = tuple(task.id for task in self.held)
        self.archive = archive_in(self.folder)
        self.world = World.of(
            self.config, self.journal, self.archive, self.clock, versions=self.versions, running=running
        )
        self.committing = self.loop.get_loop().create_task(self.journal.run())

    def _close(self) -> None:
        async def end() -> None:
            self.committing.cancel()
            await asyncio.gather(self.committing, return_exceptions=True)
            self.journal.close()
            self.archive.close()

        self.loop.run(end())


TestTwoTrainersUnderFire = pytest.mark.long(machine_test(TwoTrainersUnderFire, examples=15, steps=40))
