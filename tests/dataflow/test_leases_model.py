"""Compares leases, tries, results and partial rollouts with dictionaries, under any order of events."""

import asyncio
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from astraflow.contract.ids import FlowId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.service import build_run
from astraflow.dataflow.storage.journal import Journal
from tests import make
from tests.dataflow.kills import commits_of
from tests.dataflow.running import config, facts
from tests.fakes.clock import ManualClock
from tests.stateful import machine_test

pytestmark = pytest.mark.long

FLOW, SOLVER = FlowId("train-solver"), PolicyId("solver")
NAMES = ("ada", "bob", "eve")
LEASE_S, GRACE_S = 5.0, 2.0
GROUP_SIZE, MIN_GROUP_SIZE, MAX_ATTEMPTS, MAX_STALENESS = 3, 2, 2, 1

names = st.sampled_from(NAMES)
choices = st.integers(0, 10_000)


@dataclass(slots=True)
class Member:
    """Model of one issued task."""

    attempt: int = 0
    holder: str | None = None
    """Name of the node."""
    held_until: float | None = None
    """None while the task is queued. A task in doubt has no holder."""
    kept: tuple[int, int] | None = None
    """Tokens handed back, and the version that wrote them."""
    result: str | None = None
    """Outcome of the episode that counts."""


@dataclass(slots=True)
class NodeModel:
    """Model of one node."""

    id: NodeId | None = None
    """None when the node has not joined or dataflow has forgotten it."""
    beat_at: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    """Tasks leased since the node last left: it may push any of them at any time."""


class LeasesUnderFire(RuleBasedStateMachine):
    """Three nodes act in any order, late and twice; leases expire; dataflow is killed."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.version = 0
        self.members: dict[TaskId, Member] = {}
        self.nodes = {name: NodeModel() for name in NAMES}
        self.outcomes: Counter[str] = Counter()
        self.partial_rollouts: Counter[str] = Counter()
        self.rewards: dict[TaskId, float] = {}
        self.pushes = 0
        self._open()

    def teardown(self) -> None:
        """Checks that every issued task comes to an end once a node works it off."""
        if not hasattr(self, "run"):
            return
        self.run.pause_flow(FLOW, is_paused=True, actor="a test", reason="no more")
        self.nodes = {name: NodeModel() for name in NAMES}
        self.advance_time(2 * LEASE_S)
        while tasks := self._lease("ada", 8):
            for task in tasks:
                self._push("ada", task, "success", used=True)
        self.counts_balance()
        assert not self.run.flows[FLOW].open_groups
        assert all(member.result for member in self.members.values())
        self._close()
        self.loop.close()
        shutil.rmtree(self.folder)

    @rule(name=names, capacity=st.integers(1, 4))
    def lease_tasks(self, name: str, capacity: int) -> None:
        self._lease(name, capacity)

    @rule(
        name=names,
        choice=choices,
        outcome=st.sampled_from(["success", "engine", "reward", "workflow"]),
        used=st.booleans(),
    )
    def push_a_result(self, name: str, choice: int, outcome: str, used: bool) -> None:
        """Pushes a task that the node leased, whether or not it still holds it, possibly more than once."""
        if self.nodes[name].tasks:
            self._push(name, self.nodes[name].tasks[choice % len(self.nodes[name].tasks)], outcome, used=used)

    @rule(name=names, choice=choices, tokens=st.integers(0, 3), lag=st.integers(0, 2), used=st.booleans())
    def return_a_task(self, name: str, choice: int, tokens: int, lag: int, used: bool) -> None:
        if not self.nodes[name].tasks:
            return
        task = self.nodes[name].tasks[choice % len(self.nodes[name].tasks)]
        member, born = self.members[task.id], max(0, self.version - lag)
        continued = sum(len(partial_rollout.generation.tokens) for partial_rollout in task.resume_from) if used else 0
        written = make.recorded("x" * tokens, version=born)
        partial = make.partial(task.id, written, attempt=task.attempt, continued_tokens=continued, nothing=not tokens)
        node = self._id(name)
        is_its_own = not member.result and member.holder == name and member.attempt == task.attempt
        (outcome,) = self.loop.run(self.side.results.hand_back(node, [partial]))
        assert outcome == ("handed_back" if is_its_own else "late")
        if not is_its_own:
            self.partial_rollouts["late"] += 1
            return
        member.holder = member.held_until = None
        if tokens:
            self._settle(member, continued)
            self.partial_rollouts["handed_back"] += 1
            member.kept = (tokens, born)
            self._drop_stale()

    @rule(name=names)
    def send_a_heartbeat(self, name: str) -> None:
        node, running = self._id(name), tuple(task.id for task in self.nodes[name].tasks)
        self.side.membership.heartbeat(NodeStatus(node=node, running=running, versions={}))
        self.nodes[name].beat_at = self.clock.now()
        self._renew(name)

    @rule(name=names)
    def let_a_node_leave(self, name: str) -> None:
        self.side.membership.leave(self._id(name), "a test")
        self._return_all_of(name)
        self.nodes[name] = NodeModel()

    @rule(name=names)
    def restart_a_node(self, name: str) -> None:
        """Joins again under the same name without tasks: the earlier process is replaced."""
        self.nodes[name].tasks = []
        self._join(name)

    @rule(seconds=st.sampled_from([0.5, 1.0, LEASE_S - 0.5, LEASE_S + 0.5]))
    def advance_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        now = self.clock.now()
        self.side.membership.tick()
        for member in self.members.values():
            if member.held_until is not None and member.held_until <= now:
                member.holder = member.held_until = None
        for name, node in self.nodes.items():
            if node.id is not None and now - node.beat_at > LEASE_S:
                node.id = None
                self._return_all_of(name)
        self.loop.run(self.journal.wait_durable())

    @rule()
    def advance_the_trainer(self) -> None:
        self.version += 1
        self.trainers.attach(SOLVER, Version(self.version), backend="a test", is_simulated=True)
        self._drop_stale()
        self.loop.run(self.journal.wait_durable())

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
        for member in self.members.values():
            if not member.result:
                member.holder, member.held_until = None, self.clock.now() + GRACE_S
        for node in self.nodes.values():
            node.id = None

    @invariant()
    def counts_balance(self) -> None:
        if not hasattr(self, "run"):
            return
        report = build_report(self.run, name="test", sequence=1, now=self.clock.now(), wall=0, uptime_s=0)
        flow = report.flows[0]
        assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())
        assert dict(flow.episodes) == dict(self.outcomes)
        assert sum(flow.episodes.values()) == self.pushes
        assert flow.tasks_queued + flow.tasks_leased == flow.issued * GROUP_SIZE - len(self._results())
        assert flow.tasks_leased == sum(member.held_until is not None for member in self._unfinished())
        kept = [member.kept for member in self.members.values() if member.kept]
        expected = {**self.partial_rollouts, "stored": len(kept), "stored_bytes": sum(8 * tokens for tokens, _ in kept)}
        assert {name: count for name, count in flow.partial_rollouts.items() if count} == {
            name: count for name, count in expected.items() if count
        }

    @invariant()
    def every_group_has_exactly_its_rewards(self) -> None:
        """Checks that masked members have no row, so that no zero reward is invented for them."""
        if not hasattr(self, "run"):
            return
        closed = Counter(task.partition("/")[0] for task in self._results())
        good = Counter(task.partition("/")[0] for task, outcome in self._results().items() if outcome == "accepted")
        complete = [group for group, results in closed.items() if results == GROUP_SIZE]
        counts = self.run.flows[FLOW].counts
        assert counts.admitted == sum(good[group] >= MIN_GROUP_SIZE for group in complete)
        assert counts.dropped["failed"] == sum(good[group] < MIN_GROUP_SIZE for group in complete)
        for candidate in self.run.streams[SOLVER].buffer.candidates():
            rows = {row.task: row.trajectory.reward for row in candidate.group.rows}
            assert len(rows) == len(candidate.group.rows) == good[candidate.group.id]
            assert all(self.rewards[task] == reward for task, reward in rows.items())

    def _lease(self, name: str, capacity: int) -> list[Task]:
        node = self._id(name)
        queued = [task for task, member in self.members.items() if not member.result and member.held_until is None]
        lease = self.loop.run(self.side.leasing.lease(node, capacity, versions={}, wait_s=0))
        assert len({task.id for task in lease.tasks} & set(queued)) == min(len(queued), capacity)
        for task in lease.tasks:
            for number in range(GROUP_SIZE):
                self.members.setdefault(TaskId(f"{task.group}/{number}"), Member())
            member = self.members[task.id]
            assert (member.result, member.held_until) == (None, None)
            assert task.attempt == member.attempt
            assert (
                sum(len(partial_rollout.generation.tokens) for partial_rollout in task.resume_from)
                == (member.kept or (0, 0))[0]
            )
            member.holder, member.held_until = name, self.clock.now() + LEASE_S
        self.nodes[name].tasks += lease.tasks
        return list(lease.tasks)

    def _push(self, name: str, task: Task, outcome: str, *, used: bool) -> None:
        node, member = self._id(name), self.members[task.id]
        continued = sum(len(partial_rollout.generation.tokens) for partial_rollout in task.resume_from) if used else 0
        episode = self._episode(task, node, outcome, continued)
        expected = self._expected(name, task, outcome)
        (outcome,) = self.loop.run(self.side.results.push(node, [episode]))
        assert outcome == expected
        self.pushes += 1
        self.outcomes[outcome] += 1
        if outcome == "retried":
            member.attempt += 1
            member.holder = member.held_until = None
            self._settle(member, 0)
        elif outcome == "accepted" or outcome.startswith("failed_"):
            member.result = outcome
            self._settle(member, continued if outcome == "accepted" else 0)
            for trajectory in episode.trajectories:
                self.rewards[task.id] = trajectory.reward

    def _expected(self, name: str, task: Task, outcome: str) -> str:
        member, group = self.members[task.id], task.id.partition("/")[0]
        if member.result:
            results = [result for task_id, result in self._results().items() if task_id.partition("/")[0] == group]
            return "late" if len(results) == GROUP_SIZE else "duplicate"
        if outcome in ("success", "workflow"):
            return "accepted" if outcome == "success" else "failed_workflow"
        if task.attempt != member.attempt or member.holder not in (None, name):
            return "superseded"
        return "retried" if member.attempt + 1 < MAX_ATTEMPTS else f"failed_{outcome}"

    def _episode(self, task: Task, node: NodeId, outcome: str, continued: int) -> Episode:
        about: dict[str, Any] = {
            "task": task.id,
            "node": node,
            "attempt": task.attempt,
            "continued_tokens": continued,
        }
        if outcome == "success":
            trajectory = make.trajectory(version=self.version, reward=1.0 + self.pushes)
            return Episode(**about, trajectories=(trajectory,))
        return Episode(**about, trajectories=(), failure=Failure(boundary=Boundary(outcome), message="broke"))

    def _settle(self, member: Member, continued: int) -> None:
        if member.kept:
            saved = min(continued, member.kept[0])
            self.partial_rollouts["continued" if saved else "discarded"] += 1
            self.partial_rollouts["tokens_saved"] += saved
            member.kept = None

    def _drop_stale(self) -> None:
        for member in self.members.values():
            if member.kept and member.kept[1] < self.version - MAX_STALENESS:
                member.kept = None
                self.partial_rollouts["stale"] += 1

    def _results(self) -> dict[TaskId, str]:
        return {task: member.result for task, member in self.members.items() if member.result}

    def _unfinished(self) -> list[Member]:
        return [member for member in self.members.values() if not member.result]

    def _id(self, name: str) -> NodeId:
        """Returns the node's id; a node that was forgotten joins again and lists its running tasks."""
        return self.nodes[name].id or self._join(name)

    def _join(self, name: str) -> NodeId:
        node = self.nodes[name]
        if node.id is not None:
            self._return_all_of(name)
        node.id = self.side.membership.join(facts(name, running=tuple(task.id for task in node.tasks))).id
        node.beat_at = self.clock.now()
        for member in (self.members[task.id] for task in node.tasks):
            if not member.result and member.holder is None:
                member.holder, member.held_until = name, self.clock.now() + LEASE_S
        self._renew(name)
        return node.id

    def _renew(self, name: str) -> None:
        for member in (self.members[task.id] for task in self.nodes[name].tasks):
            is_in_doubt = member.holder is None and member.held_until is not None
            if not member.result and (member.holder == name or is_in_doubt):
                member.holder, member.held_until = name, self.clock.now() + LEASE_S

    def _return_all_of(self, name: str) -> None:
        for member in self._unfinished():
            if member.holder == name:
                member.holder = member.held_until = None

    def _open(self) -> None:
        dataflow_config = config(
            batch_groups=20,
            max_staleness=MAX_STALENESS,
            group_size=GROUP_SIZE,
            lease_s=LEASE_S,
            max_attempts=MAX_ATTEMPTS,
        )
        self.journal = Journal(self.folder / "journal.sqlite")
        self.writing = commits_of(self.journal)
        self.archive = Archive(self.folder / "history.sqlite", clock=self.clock)
        self.run: Run = build_run(dataflow_config, journal=self.journal, archive=self.archive, clock=self.clock)
        self.run.restore(grace_s=GRACE_S)
        self.side, self.trainers = NodeOperations(self.run), TrainerOperations(self.run)
        self.committing = self.loop.get_loop().create_task(self.journal.run())

    def _close(self) -> None:
        async def end() -> None:
            self.committing.cancel()
            await asyncio.gather(self.committing, return_exceptions=True)
            self.journal.close()
            self.archive.close()

        self.loop.run(end())


TestLeasesUnderFire = machine_test(LeasesUnderFire, examples=20, steps=50)
