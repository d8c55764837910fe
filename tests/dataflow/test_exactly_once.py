"""A run under random nodes, trainers and crashes, against a simple model of what must hold."""

import asyncio
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.failures import Boundary, Failure
from astraflow.contract.ids import BatchId, FlowId, GroupId, PolicyId, TaskId, Version
from astraflow.contract.plugins import PluginChange, Seam
from astraflow.contract.tasks import Task
from astraflow.contract.trajectories import Episode
from astraflow.dataflow.config import EvaluationConfig
from astraflow.dataflow.evaluating.evaluator import Evaluator
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.node_side import NodeSide
from astraflow.dataflow.reporting.archive import Archive
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.service import build_run
from astraflow.dataflow.trainer_side import TrainerSide
from tests import make
from tests.dataflow.kills import commits_of
from tests.dataflow.running import config, evaluation, facts
from tests.fakes.clock import ManualClock

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
    """Nodes lease, push, repeat themselves and vanish; the trainer pulls and acknowledges; dataflow is killed."""

    selector: Spec = UNIFORM
    sampler: Spec = {"kind": "fresh"}  # noqa: RUF012 (subclasses set another, nobody changes it)
    evaluations: dict[str, EvaluationConfig] = {}  # noqa: RUF012 (the same)

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
        self.specs: dict[Seam, list[Spec]] = {
            Seam.SELECTOR: [self.selector],
            Seam.FILTERS: [INFORMATIVE],
            Seam.SAMPLER: [self.sampler],
        }
        self.planned: dict[Seam, list[Spec]] = {}
        self.has_replayed = self._replays
        self._open()
        self.a_node_pushes_all_it_held(lag=0, differs=False)  # what a selector remembers

    def teardown(self) -> None:
        self._close()
        self.loop.close()
        shutil.rmtree(self.folder)

    @rule(capacity=st.integers(1, 5))
    def a_node_leases(self, capacity: int) -> None:
        lease = self.loop.run(self.nodes.lease(self.node, capacity, versions={}, wait_s=0))
        self.held += lease.tasks

    @rule(data=st.data(), lag=st.integers(0, MAX_STALENESS + 1), fails=st.booleans())
    def a_node_pushes_what_it_held_once(self, data: st.DataObject, lag: int, fails: bool) -> None:
        if not self.held:
            return
        task = data.draw(st.sampled_from(self.held))
        self._push(self._episode(task, lag=lag, fails=fails))

    @rule(lag=st.integers(0, MAX_STALENESS + 1), differs=st.sampled_from([True, True, False]))
    def a_node_pushes_all_it_held(self, lag: int, differs: bool) -> None:
        """Held tasks stay on the list: pushing them again must change nothing."""
        self.a_node_leases(8)
        for task in self.held[-8:]:
            self._push(self._episode(task, lag=lag, fails=False, differs=differs))

    @rule()
    def the_trainer_makes_a_step(self) -> None:
        self.the_trainer_pulls()
        self.the_trainer_acknowledges(twice=False)

    @rule(data=st.data())
    def a_push_is_repeated(self, data: st.DataObject) -> None:
        if not self.acknowledged:
            return
        task = data.draw(st.sampled_from(sorted(self.acknowledged)))
        (fate,) = self.loop.run(self.nodes.push(self.node, [self.acknowledged[task]]))
        assert fate in ALREADY_COUNTED

    @rule()
    def leases_run_out(self) -> None:
        self.clock.advance(LEASE_S + 1)
        self.nodes.tick()
        self.node = self.nodes.join(facts()).id

    @rule()
    def the_trainer_pulls(self) -> None:
        batch = self.loop.run(self.trainers.pull(SOLVER, Version(self.version), wait_s=0))
        if batch is None:
            return
        if self.batch is not None:
            assert batch.is_redelivered
            assert [row.task for row in batch.rows] == [row.task for row in self.batch.rows]
        for row in batch.rows:
            born = row.trajectory.oldest_version
            assert born is not None and batch.version - born <= MAX_STALENESS
            pushed = self.acknowledged[row.task].trajectories[0]
            assert np.array_equal(pushed.tokens, row.trajectory.tokens)
        self.batch = batch

    @rule(twice=st.booleans())
    def the_trainer_acknowledges(self, twice: bool) -> None:
        if self.batch is None:
            return
        self.version += 1
        self.specs, self.planned = self.specs | self.planned, {}
        self.has_replayed |= self._replays
        report = StepReport(
            batch=self.batch.id, policy=SOLVER, version=Version(self.version), wait_s=0, compute_s=1, publish_s=0
        )
        assert self.loop.run(self.trainers.report_step(report))
        if twice:
            assert not self.loop.run(self.trainers.report_step(report))
        again = {row.group for row in self.batch.rows if row.task in self.trained}
        self.trained.update(row.task for row in self.batch.rows if row.group not in again)
        self.replayed |= {(self.batch.id, group) for group in again}
        self.batch = None

    @rule(flow=st.sampled_from([{}, *FLOW_CHANGES]), sampler=st.sampled_from([None, *SAMPLERS]))
    def plugins_are_changed(self, flow: Spec, sampler: Spec | None) -> None:
        """A change that is answered stays, whatever comes."""
        asked: dict[str, Any] = {"actor": "ada", "reason": "a try"}
        if flow:
            self.loop.run(self._change(PluginChange(flow=FLOW, **flow, **asked)))
        if sampler is not None:
            self.loop.run(self._change(PluginChange(policy=SOLVER, sampler=sampler, **asked)))

    @rule(flow=st.sampled_from(FLOW_CHANGES), sampler=st.sampled_from(SAMPLERS))
    def plugins_are_changed_shortly_before_a_kill(self, flow: Spec, sampler: Spec) -> None:
        self.plugins_are_changed(flow, sampler)
        self.a_node_pushes_all_it_held(lag=0, differs=True)
        self.the_trainer_makes_a_step()
        self.dataflow_is_killed()

    @rule()
    def dataflow_is_killed(self) -> None:
        """What a kill leaves is the files as they are: they are copied away before the old process may close them.

        Between two commits, since a copy takes its time; `test_journal_crashes` kills within them.
        """
        fresh = Path(tempfile.mkdtemp())
        with self.writing:
            shutil.copytree(self.folder, fresh, dirs_exist_ok=True)
        self._close()
        shutil.rmtree(self.folder)
        self.folder = fresh
        self._open()

    @invariant()
    def the_counts_balance(self) -> None:
        if not hasattr(self, "run"):
            return
        report = build_report(self.run, name="test", sequence=1, now=self.clock.now(), wall=0, uptime_s=0)
        flow, stream = report.flows[0], report.streams[0]
        assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())
        spread = stream.buffered + stream.in_batch + stream.trained + sum(stream.dropped.values())
        assert stream.admitted == spread
        assert stream.steps == self.version
        assert stream.trained == len({task.partition("/")[0] for task in self.trained})
        assert stream.replayed == len(self.replayed)
        assert stream.trained + stream.replayed == stream.steps * stream.batch_groups
        assert stream.replayable <= stream.trained
        assert not stream.replayable or self._replays

    @invariant()
    def nothing_is_trained_twice(self) -> None:
        """Unless a sampler replays, and then it is counted as what it is."""
        assert all(times == 1 for times in getattr(self, "trained", Counter()).values())
        assert getattr(self, "has_replayed", False) or not getattr(self, "replayed", set())

    @invariant()
    def the_plugins_are_those_that_were_asked_for(self) -> None:
        if not hasattr(self, "run"):
            return
        report = build_report(self.run, name="test", sequence=1, now=self.clock.now(), wall=0, uptime_s=0)
        flow, stream = report.flows[0], report.streams[0]
        found = {Seam.SELECTOR: [flow.selector], Seam.FILTERS: [*flow.filters], Seam.SAMPLER: [stream.sampler]}
        assert found == self.specs
        assert {one.seam: [*one.specs] for one in (*flow.planned, *stream.planned)} == self.planned

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
        self.journal.rows("pragma synchronous = off")  # what is killed here is a process, not a machine
        self.writing = commits_of(self.journal)
        owners = {owner for (owner,) in self.journal.rows("select distinct owner from rows")}
        assert owners <= {f"flow {FLOW} {self.specs[Seam.SELECTOR][0]['kind']}", f"flow {HELD_OUT} round"}
        self.archive = Archive(self.folder / "history.sqlite", clock=self.clock)
        self.run: Run = build_run(settings_, journal=self.journal, archive=self.archive, clock=self.clock)
        self.run.restore(grace_s=1)
        self.nodes, self.trainers = NodeSide(self.run), TrainerSide(self.run)
        self.committing = self.loop.get_loop().create_task(self.journal.run())
        self.node = self.nodes.join(facts()).id
        if not self.run.trainers:
            self.trainers.attach(SOLVER, Version(self.version), backend="fake", is_simulated=True)

    async def _change(self, change: PluginChange) -> None:
        self.run.change_plugins(change)
        for seam, specs in change.wanted().items():
            self.planned.pop(seam, None)
            if [*specs] != self.specs[seam]:
                self.planned[seam] = [dict(spec) for spec in specs]
        await self.journal.durable()

    @property
    def _replays(self) -> bool:
        return bool(self.specs[Seam.SAMPLER][0]["kind"] == "replay")

    def _close(self) -> None:
        async def end() -> None:
            self.committing.cancel()
            await asyncio.gather(self.committing, return_exceptions=True)
            self.archive.close()

        self.loop.run(end())

    def _push(self, episode: Episode) -> None:
        (fate,) = self.loop.run(self.nodes.push(self.node, [episode]))
        known = episode.task in self.acknowledged
        assert (fate in ALREADY_COUNTED) == known
        if fate not in ("retried", "superseded") and not known:
            self.acknowledged[episode.task] = episode

    def _episode(self, task: Task, *, lag: int, fails: bool, differs: bool = True) -> Episode:
        if fails:
            failure = Failure(boundary=Boundary.ENGINE, message="broke")
            return Episode(task=task.id, node=self.node, trajectories=(), failure=failure, attempt=task.attempt)
        version = max(0, self.version - lag)
        trajectory = make.trajectory(version=version, reward=float(differs and task.member % 2))
        return Episode(task=task.id, node=self.node, trajectories=(trajectory,))


class EvaluationUnderFire(RunUnderFire):
    """The same beside an evaluation of every version: everything above holds as if it were not there."""

    evaluations: dict[str, EvaluationConfig] = {  # noqa: RUF012 (nobody changes it)
        "held-out": evaluation(every_versions=1, at_start=True)
    }

    @initialize()
    def start(self) -> None:
        self.ended: list[EvaluationReport] = []
        super().start()

    @rule(capacity=st.integers(1, 5), at_most=st.integers(0, 5))
    def a_node_leases_with_its_share(self, capacity: int, at_most: int) -> None:
        leasing = self.nodes.lease(self.node, capacity, versions={}, wait_s=0, evaluation_capacity=at_most)
        lease = self.loop.run(leasing)
        pinned = [task for task in lease.tasks if task.pinned]
        held = self.run.evaluations[HELD_OUT].flow.leases.held_by(self.node)
        assert not pinned or held <= at_most
        self.held += lease.tasks

    @rule()
    def somebody_stops_the_round(self) -> None:
        if self.run.evaluations[HELD_OUT].rounds.round is not None:
            Evaluator(self.run).stop(HELD_OUT, actor="ada", reason="enough")
            stopped = {task.id for task in self.held if task.pinned and task.id not in self.acknowledged}
            self.held = [task for task in self.held if task.id not in stopped]
            self.loop.run(self.journal.durable())

    @invariant()
    def rounds_that_ended_stay_as_they_were(self) -> None:
        if not hasattr(self, "run"):
            return
        ended = self.run.evaluations[HELD_OUT].ended
        assert ended[: len(self.ended)] == self.ended
        self.ended = list(ended)
        for before, after in pairwise(ended):
            assert before.round < after.round
        assert all(one.done == one.total for one in ended if one.state is EvaluationState.DONE)

    @invariant()
    def nothing_of_a_round_is_kept_longer_than_it(self) -> None:
        if not hasattr(self, "run"):
            return
        flow = self.run.evaluations[HELD_OUT].flow
        round_ = self.run.evaluations[HELD_OUT].rounds.round
        assert round_ is not None or not (flow.open or flow.leases.queued or flow.leases.held)

    def _open(self) -> None:
        super()._open()
        self.trainers.attach(SOLVER, Version(self.version), backend="single", is_simulated=False)
        self.loop.run(self.journal.durable())

    def _episode(self, task: Task, *, lag: int, fails: bool, differs: bool = True) -> Episode:
        episode = super()._episode(task, lag=lag, fails=fails, differs=differs)
        if not task.pinned or fails:
            return episode
        return replace(episode, trajectories=(make.trajectory(version=task.pinned[SOLVER]),))


class ReplayUnderFire(RunUnderFire):
    """The same with a sampler that trains groups again, and a selector that remembers prompts."""

    selector: Spec = GRESO
    sampler: Spec = {"kind": "replay", "ratio": 0.5}  # noqa: RUF012 (nobody changes it)


TestRunUnderFire = RunUnderFire.TestCase
TestReplayUnderFire = ReplayUnderFire.TestCase
TestEvaluationUnderFire = EvaluationUnderFire.TestCase
TestRunUnderFire.settings = TestReplayUnderFire.settings = TestEvaluationUnderFire.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
