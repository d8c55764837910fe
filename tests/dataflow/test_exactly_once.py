"""Compares a run under random nodes, trainers and crashes with a simple model of its guarantees."""

import asyncio
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from astraflow.contract.batches import Batch, StepEnd, StepFailure, StepReport
from astraflow.contract.ids import BatchId, FlowId, GroupId, PolicyId, TaskId, Version
from astraflow.contract.plugins import PluginChange, PluginSlot
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.reports.training_steps import TrainingStepQuery
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.config import EvaluationConfig
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.service import build_run
from astraflow.dataflow.serving.failed_steps import MAX_IN_A_ROW
from astraflow.dataflow.serving.stream import Stream
from astraflow.dataflow.storage.journal import Journal
from tests import make
from tests.dataflow.kills import commits_of
from tests.dataflow.running import config, evaluation, facts
from tests.fakes.clock import ManualClock
from tests.stateful import machine_test

pytestmark = pytest.mark.long

SOLVER, FLOW = PolicyId("solver"), FlowId("train-solver")
HELD_OUT = FlowId("held-out")
MAX_STALENESS = 1
LEASE_S = 5.0
ALREADY_COUNTED = ("duplicate", "late")
Spec: TypeAlias = dict[str, Any]
UNIFORM: Spec = {"kind": "uniform"}
GRESO: Spec = {"kind": "greso"}
INFORMATIVE: Spec = {"kind": "informative"}
FLOW_CHANGES: list[dict[str, Any]] = [
    {"selector": UNIFORM},
    {"selector": GRESO, "filters": (INFORMATIVE, {"kind": "length"})},
    {"selector": {"kind": "greso", "step": 0.1}, "filters": ()},
    {"filters": (INFORMATIVE,)},
]
SAMPLERS: list[Spec] = [{"kind": "fresh"}, {"kind": "priority"}, {"kind": "replay", "ratio": 0.5}]


class RunUnderFire(RuleBasedStateMachine):
    """Nodes lease, push, repeat requests and disappear; the trainer pulls and acknowledges; dataflow is killed."""

    selector: Spec = UNIFORM
    sampler: Spec = {"kind": "fresh"}  # noqa: RUF012 (subclasses set another, no code mutates it)
    evaluations: dict[str, EvaluationConfig] = {}  # noqa: RUF012 (same reason)

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.version = 0
        self.held: list[Task] = []
        self.acknowledged: dict[TaskId, Episode] = {}
        self.trained: Counter[TaskId] = Counter()
        self.replayed: set[tuple[BatchId, GroupId]] = set()
        self.batch: Batch | None = None
        self.following: Batch | None = None
        self.specs: dict[PluginSlot, list[Spec]] = {
            PluginSlot.SELECTOR: [self.selector],
            PluginSlot.FILTERS: [INFORMATIVE],
            PluginSlot.SAMPLER: [self.sampler],
        }
        self.planned: dict[PluginSlot, list[Spec]] = {}
        self.has_replayed = self._replays
        self._open()
        self.push_all_results(lag=0, differs=False)  # gives the selector state to remember

    def teardown(self) -> None:
        self._close()
        self.loop.close()
        shutil.rmtree(self.folder)

    @rule(capacity=st.integers(1, 5))
    def lease_tasks(self, capacity: int) -> None:
        lease = self.loop.run(self.nodes.leasing.lease(self.node, capacity, versions={}, wait_s=0))
        self.held += lease.tasks

    @rule(data=st.data(), lag=st.integers(0, MAX_STALENESS + 1), fails=st.booleans())
    def push_an_earlier_result(self, data: st.DataObject, lag: int, fails: bool) -> None:
        if not self.held:
            return
        task = data.draw(st.sampled_from(self.held))
        self._push(self._episode(task, lag=lag, fails=fails))

    @rule(lag=st.integers(0, MAX_STALENESS + 1), differs=st.sampled_from([True, True, False]))
    def push_all_results(self, lag: int, differs: bool) -> None:
        """Leaves pushed tasks in the list: pushing them again must change nothing."""
        self.lease_tasks(8)
        for task in self.held[-8:]:
            self._push(self._episode(task, lag=lag, fails=False, differs=differs))

    @rule()
    def take_a_step(self) -> None:
        self.pull_a_batch()
        self.acknowledge_a_batch(twice=False)

    @rule(data=st.data())
    def repeat_a_push(self, data: st.DataObject) -> None:
        if not self.acknowledged:
            return
        task = data.draw(st.sampled_from(sorted(self.acknowledged)))
        (outcome,) = self.loop.run(self.nodes.results.push(self.node, [self.acknowledged[task]]))
        assert outcome in ALREADY_COUNTED

    @rule()
    def expire_leases(self) -> None:
        self.clock.advance(LEASE_S + 1)
        self.nodes.membership.tick()
        self.node = self.nodes.membership.join(facts()).id

    @rule()
    def pull_a_batch(self) -> None:
        batch = self.loop.run(self.trainers.pull(SOLVER, Version(self.version), wait_s=0))
        if batch is None:
            return
        self._check_delivery(batch, before=self.batch)
        self.batch = batch

    @rule()
    def pull_before_acknowledging(self) -> None:
        """The trainer pulls a batch while the checkpoint with the previous batch is written."""
        if self.batch is None:
            return
        before = self._stream.version
        following = self.loop.run(self.trainers.pull(SOLVER, Version(self.version + 1), wait_s=0, unacknowledged=1))
        self._plugins_are_activated(since=before)
        if following is None:
            return
        assert following.id != self.batch.id
        self._check_delivery(following, before=self.following)
        self.following = following

    def _check_delivery(self, batch: Batch, *, before: Batch | None) -> None:
        if before is not None:
            assert batch.is_redelivered
            assert [row.task for row in batch.rows] == [row.task for row in before.rows]
        for row in batch.rows:
            born = row.trajectory.oldest_version
            assert born is not None and batch.version - born <= MAX_STALENESS
            pushed = self.acknowledged[row.task].trajectories[0]
            assert np.array_equal(pushed.tokens, row.trajectory.tokens)

    @property
    def _stream(self) -> Stream:
        return self.run.streams[SOLVER]

    def _plugins_are_activated(self, *, since: Version) -> None:
        if self._stream.version == since:
            return
        self.specs, self.planned = self.specs | self.planned, {}
        self.has_replayed |= self._replays

    @rule(twice=st.booleans())
    def acknowledge_a_batch(self, twice: bool) -> None:
        if self.batch is None:
            return
        self.version += 1
        before = self._stream.version
        report = StepReport(
            batch=self.batch.id, policy=SOLVER, version=Version(self.version), wait_s=0, compute_s=1, publish_s=0,
            metrics={"loss": 1 / self.version},
        )  # fmt: skip
        assert self.loop.run(self.trainers.report_step(report))
        self._plugins_are_activated(since=before)
        if twice:
            assert not self.loop.run(self.trainers.report_step(report))
        again = {row.group for row in self.batch.rows if row.task in self.trained}
        self.trained.update(row.task for row in self.batch.rows if row.group not in again)
        self.replayed |= {(self.batch.id, group) for group in again}
        self.batch, self.following = self.following, None

    @rule(of_following=st.booleans())
    def end_the_trainer_twice(self, of_following: bool) -> None:
        """Sets a batch aside: the next one gets its number, and a newer open batch is assembled anew."""
        batch = self.following if of_following else self.batch
        if batch is None or self._stream.failed_steps.in_a_row == MAX_IN_A_ROW:
            return
        outcomes = [self.loop.run(self.trainers.report_failure(self._failure(batch, attempt))) for attempt in "aab"]
        assert outcomes == [False, False, True]
        self.following = None
        self.batch = self.batch if of_following else None

    @rule()
    def kill_the_trainer(self) -> None:
        """Leaves the batch open."""
        if self.batch is not None and not self._stream.failed_steps.of(self.batch.id):
            failure = replace(self._failure(self.batch, "k"), end=StepEnd.UNEXPLAINED)
            assert not self.loop.run(self.trainers.report_failure(failure))

    def _failure(self, batch: Batch, attempt: str) -> StepFailure:
        name = f"{batch.rows[0].task} {attempt}"
        return StepFailure(
            policy=SOLVER, batch=batch.id, attempt=name, end=StepEnd.ERROR, error="IndexError: x", step_s=1.0
        )

    @rule(flow=st.sampled_from([{}, *FLOW_CHANGES]), sampler=st.sampled_from([None, *SAMPLERS]))
    def request_plugin_change(self, flow: Spec, sampler: Spec | None) -> None:
        """Checks with the invariants that an acknowledged change persists."""
        author: dict[str, Any] = {"actor": "ada", "reason": "a try"}
        if flow:
            self.loop.run(self._change(PluginChange(flow=FLOW, **flow, **author)))
        if sampler is not None:
            self.loop.run(self._change(PluginChange(policy=SOLVER, sampler=sampler, **author)))

    @rule(flow=st.sampled_from(FLOW_CHANGES), sampler=st.sampled_from(SAMPLERS))
    def change_plugins_before_a_kill(self, flow: Spec, sampler: Spec) -> None:
        self.request_plugin_change(flow, sampler)
        self.push_all_results(lag=0, differs=True)
        self.take_a_step()
        self.kill_dataflow()

    @rule()
    def kill_dataflow(self) -> None:
        """Restarts dataflow from a copy of its files, made before the old process can close them.

        The copy is made between two commits, since it takes time; `test_journal_crashes` kills within commits.
        """
        fresh = Path(tempfile.mkdtemp())
        with self.writing:
            shutil.copytree(self.folder, fresh, dirs_exist_ok=True)
        self._close()
        shutil.rmtree(self.folder)
        self.folder = fresh
        self._open()
        steps = self.loop.run(self.run.training_steps.page(TrainingStepQuery(policy=SOLVER))).steps
        expected = [(number, 1 / number) for number in range(1, self.version + 1)]
        assert [(step.step, step.metrics["loss"]) for step in steps] == expected

    @invariant()
    def counts_balance(self) -> None:
        if not hasattr(self, "run"):
            return
        report = build_report(self.run, name="test", sequence=1, now=self.clock.now(), wall=0, uptime_s=0)
        flow, stream = report.flows[0], report.streams[0]
        assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())
        spread = stream.groups.accounted
        assert stream.groups.admitted == spread
        assert stream.training.steps == self.version
        assert stream.groups.trained == len({task.partition("/")[0] for task in self.trained})
        assert stream.groups.replayed == len(self.replayed)
        assert stream.groups.trained + stream.groups.replayed == stream.training.steps * stream.batch_groups
        assert stream.groups.replayable <= stream.groups.trained
        assert not stream.groups.replayable or self._replays

    @invariant()
    def no_group_is_trained_twice(self) -> None:
        """Holds unless a sampler replays; replayed groups are counted as replayed."""
        assert all(times == 1 for times in getattr(self, "trained", Counter()).values())
        assert getattr(self, "has_replayed", False) or not getattr(self, "replayed", set())

    @invariant()
    def plugins_match_the_last_change(self) -> None:
        if not hasattr(self, "run"):
            return
        report = build_report(self.run, name="test", sequence=1, now=self.clock.now(), wall=0, uptime_s=0)
        flow, stream = report.flows[0], report.streams[0]
        active_plugins = {
            PluginSlot.SELECTOR: [flow.selector],
            PluginSlot.FILTERS: [*flow.filters],
            PluginSlot.SAMPLER: [stream.sampler],
        }
        assert active_plugins == self.specs
        assert {
            planned_change.slot: [*planned_change.specs] for planned_change in (*flow.planned, *stream.planned)
        } == self.planned

    def _open(self) -> None:
        settings_ = config(
            batch_groups=2,
            max_staleness=MAX_STALENESS,
            filters=("informative",),
            lease_s=LEASE_S,
            max_attempts=2,
            sampler=self.sampler,
            evaluations=self.evaluations,
        )
        flows = {name: flow.model_copy(update={"selector": self.selector}) for name, flow in settings_.flows.items()}
        settings_ = settings_.model_copy(update={"flows": flows})
        self.journal = Journal(self.folder / "journal.sqlite")
        self.journal.rows("pragma synchronous = off")  # the test kills a process, not the operating system
        self.writing = commits_of(self.journal)
        owners = {owner for (owner,) in self.journal.rows("select distinct owner from rows")}
        assert owners <= {f"flow {FLOW} {self.specs[PluginSlot.SELECTOR][0]['kind']}", f"flow {HELD_OUT} round"}
        self.archive = Archive(self.folder / "history.sqlite", clock=self.clock)
        self.run: Run = build_run(settings_, journal=self.journal, archive=self.archive, clock=self.clock)
        self.run.restore(grace_s=1)
        self.nodes, self.trainers = NodeOperations(self.run), TrainerOperations(self.run)
        self.committing = self.loop.get_loop().create_task(self.journal.run())
        self.node = self.nodes.membership.join(facts()).id
        if not self.run.trainers:
            self.trainers.attach(SOLVER, Version(self.version), backend="fake", is_simulated=True)

    async def _change(self, change: PluginChange) -> None:
        self.run.change_plugins(change)
        for slot, specs in change.specs_by_slot().items():
            self.planned.pop(slot, None)
            if [*specs] != self.specs[slot]:
                self.planned[slot] = [dict(spec) for spec in specs]
        await self.journal.wait_durable()

    @property
    def _replays(self) -> bool:
        return bool(self.specs[PluginSlot.SAMPLER][0]["kind"] == "replay")

    def _close(self) -> None:
        async def end() -> None:
            self.committing.cancel()
            await asyncio.gather(self.committing, return_exceptions=True)
            self.journal.close()
            self.archive.close()

        self.loop.run(end())

    def _push(self, episode: Episode) -> None:
        (outcome,) = self.loop.run(self.nodes.results.push(self.node, [episode]))
        known = episode.task in self.acknowledged
        assert (outcome in ALREADY_COUNTED) == known
        if outcome not in ("retried", "superseded") and not known:
            self.acknowledged[episode.task] = episode

    def _episode(self, task: Task, *, lag: int, fails: bool, differs: bool = True) -> Episode:
        if fails:
            failure = Failure(boundary=Boundary.ENGINE, message="broke")
            return Episode(task=task.id, node=self.node, trajectories=(), failure=failure, attempt=task.attempt)
        version = max(0, self.version - lag)
        trajectory = make.trajectory(version=version, reward=float(differs and task.member % 2))
        return Episode(task=task.id, node=self.node, trajectories=(trajectory,))


class EvaluationUnderFire(RunUnderFire):
    """Repeats the test beside an evaluation of every version: all invariants still hold."""

    evaluations: dict[str, EvaluationConfig] = {  # noqa: RUF012 (no code mutates it)
        "held-out": evaluation(every_versions=1, at_start=True)
    }

    @initialize()
    def start(self) -> None:
        self.ended: list[EvaluationReport] = []
        super().start()

    @rule(capacity=st.integers(1, 5), at_most=st.integers(0, 5))
    def lease_tasks_with_an_evaluation_share(self, capacity: int, at_most: int) -> None:
        leasing = self.nodes.leasing.lease(self.node, capacity, versions={}, wait_s=0, evaluation_capacity=at_most)
        lease = self.loop.run(leasing)
        pinned = [task for task in lease.tasks if task.pinned]
        held = self.run.evaluations[HELD_OUT].flow.leases.held_by(self.node)
        assert not pinned or held <= at_most
        self.held += lease.tasks

    @rule()
    def stop_a_round(self) -> None:
        if self.run.evaluations[HELD_OUT].rounds.round is not None:
            Evaluator(self.run).stop(HELD_OUT, actor="ada", reason="enough")
            stopped = {task.id for task in self.held if task.pinned and task.id not in self.acknowledged}
            self.held = [task for task in self.held if task.id not in stopped]
            self.loop.run(self.journal.wait_durable())

    @invariant()
    def ended_rounds_do_not_change(self) -> None:
        if not hasattr(self, "run"):
            return
        ended = self.run.evaluations[HELD_OUT].ended_rounds
        assert ended[: len(self.ended)] == self.ended
        self.ended = list(ended)
        for before, after in pairwise(ended):
            assert before.round < after.round
        assert all(
            ended_round.done == ended_round.total for ended_round in ended if ended_round.state is EvaluationState.DONE
        )

    @invariant()
    def no_task_outlives_its_round(self) -> None:
        if not hasattr(self, "run"):
            return
        flow = self.run.evaluations[HELD_OUT].flow
        round_ = self.run.evaluations[HELD_OUT].rounds.round
        assert round_ is not None or not (flow.open_groups or flow.leases.queued or flow.leases.held)

    def _open(self) -> None:
        super()._open()
        self.trainers.attach(SOLVER, Version(self.version), backend="local", is_simulated=False)
        self.loop.run(self.journal.wait_durable())

    def _episode(self, task: Task, *, lag: int, fails: bool, differs: bool = True) -> Episode:
        episode = super()._episode(task, lag=lag, fails=fails, differs=differs)
        if not task.pinned or fails:
            return episode
        return replace(episode, trajectories=(make.trajectory(version=task.pinned[SOLVER]),))


class ReplayUnderFire(RunUnderFire):
    """Repeats the test with a sampler that replays trained groups and a selector that remembers prompts."""

    selector: Spec = GRESO
    sampler: Spec = {"kind": "replay", "ratio": 0.5}  # noqa: RUF012 (no code mutates it)


TestRunUnderFire = machine_test(RunUnderFire, examples=12, steps=40)
TestReplayUnderFire = machine_test(ReplayUnderFire, examples=12, steps=40)
TestEvaluationUnderFire = machine_test(EvaluationUnderFire, examples=12, steps=40)
