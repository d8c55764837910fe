"""Evaluation rounds: pinned versions, run beside training, durable, each result counted once."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.archive.reports import find_rounds
from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.reports.queries import TrajectoryQuery
from astraflow.contract.reports.report import Report
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.config import DataflowConfig
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.service import build_run
from astraflow.dataflow.storage.journal import Journal
from tests import make
from tests.dataflow.running import archive_in, committing, config, evaluation, facts, running
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")
HELD_OUT = FlowId("held-out")
GRACE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationWork:
    """Run, its operations, and the node that does the work."""

    run: Run
    nodes: NodeOperations
    trainers: TrainerOperations
    evaluator: Evaluator
    archive: Archive
    clock: ManualClock
    node: NodeId

    async def lease(self, capacity: int = 100, *, at_most: int = 100, node: NodeId | None = None) -> list[Task]:
        """Leases tasks and returns those of evaluations; training tasks are leased too and left alone."""
        lease = await self.nodes.leasing.lease(
            node or self.node, capacity, versions={}, wait_s=0, evaluation_capacity=at_most
        )
        return [task for task in lease.tasks if task.pinned]

    async def push(self, episodes: Iterable[Episode]) -> list[str]:
        return await self.nodes.results.push(self.node, [replace(episode, node=self.node) for episode in episodes])

    async def step_to(self, version: int) -> None:
        """Reports the trainer's version."""
        await self.trainers.pull(SOLVER, Version(version), wait_s=0)

    def report(self) -> Report:
        return build_report(self.run, name="test", sequence=1, now=self.clock.now(), wall=0, uptime_s=0)

    def states(self) -> list[tuple[int, str]]:
        """Returns round and state of each evaluation in the report."""
        return [(evaluation.round, evaluation.state.value) for evaluation in self.report().evaluations]

    def ended(self) -> list[EvaluationReport]:
        return self.run.evaluations[HELD_OUT].ended_rounds

    async def kept(self) -> list[EvaluationReport]:
        """Returns the archived rounds, newest first."""
        return await self.archive.read(lambda database: find_rounds(database, before=None, limit=100))


@asynccontextmanager
async def evaluating(
    folder: Path, settings: DataflowConfig, clock: ManualClock | None = None
) -> AsyncIterator[EvaluationWork]:
    """Opens a run that restores the state in the folder; its trainers are attached."""
    clock = clock or ManualClock()
    with closing(archive_in(folder)) as archive, closing(Journal(folder / "journal.sqlite")) as journal:
        run = build_run(settings, journal=journal, archive=archive, clock=clock)
        run.restore(grace_s=GRACE_S)
        async with committing(journal):
            nodes, trainers = NodeOperations(run), TrainerOperations(run)
            for policy, stream in run.streams.items():
                trainers.attach(policy, stream.version, backend="local", is_simulated=False)
            yield EvaluationWork(
                run=run,
                nodes=nodes,
                trainers=trainers,
                evaluator=Evaluator(run),
                archive=archive,
                clock=clock,
                node=nodes.membership.join(facts()).id,
            )


def with_evaluation(**options: Any) -> DataflowConfig:
    return config(evaluations={"held-out": evaluation(**options)})


def answer(task: Task, *, reward: float = 1.0, text: str = "dcba") -> Episode:
    """Returns a result produced with the versions that the task is pinned to."""
    trajectories = tuple(
        replace(make.trajectory(policy=policy, version=version, reward=reward), answer=text)
        for policy, version in task.pinned.items()
    )
    return Episode(task=task.id, node=NodeId("any"), trajectories=trajectories)


def broken(task: Task, boundary: Boundary = Boundary.ENGINE) -> Episode:
    failure = Failure(boundary=boundary, message="broke")
    return Episode(task=task.id, node=NodeId("any"), trajectories=(), failure=failure, attempt=task.attempt)


def values(report: EvaluationReport) -> dict[str, float]:
    return {score.name: score.value for score in report.scores}


async def test_a_round_starts_with_the_first_version_and_ends_with_scores(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(at_start=True, prompts=2)) as work:
        tasks = await work.lease()
        assert [task.pinned for task in tasks] == [{SOLVER: Version(0)}] * 4
        assert len({task.prompt.id for task in tasks}) == 2
        (running_round,) = work.report().evaluations
        assert (running_round.state, running_round.done, running_round.total) == (EvaluationState.RUNNING, 0, 4)
        right_first = [answer(tasks[0]), answer(tasks[1], reward=0.0, text="abcd"), *map(answer, tasks[2:3])]
        assert await work.push(right_first) == ["accepted"] * 3
        assert work.report().evaluations[0].done == 3
        await work.push([answer(tasks[3])])

        (ended,) = work.report().evaluations
        assert (ended.round, ended.state, ended.done, ended.masked, ended.failed) == (1, EvaluationState.DONE, 4, 0, 0)
        assert values(ended) == {"avg@2": 0.75, "pass@1": 0.75, "pass@2": 1.0, "maj@2": 0.75}
        assert {score.policy for score in ended.scores} == {SOLVER}
        assert ended.scores[0].error == pytest.approx(0.25)
        assert (ended.actor, ended.reason) == ("schedule", "version 0")


async def test_scheduled_rounds_follow_versions_and_replace_a_waiting_round(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(every_versions=2)) as work:
        await work.step_to(1)
        assert work.states() == []
        await work.step_to(2)
        tasks = await work.lease()
        for version in (3, 4, 5, 7, 7):
            await work.step_to(version)
        assert work.states() == [(1, "running"), (0, "waiting")]
        await work.push(map(answer, tasks))
        assert work.states() == [(1, "done"), (2, "running")]
        assert {task.pinned[SOLVER] for task in await work.lease()} == {7}


async def test_an_evaluation_does_not_change_training_counts(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(at_start=True)) as work:
        before = work.report()
        tasks = await work.lease(6)
        texts = [replace(answer(task).trajectories[0], prompt_text="rev", completion_text="dcba") for task in tasks]
        await work.push(
            Episode(task=task.id, node=work.node, trajectories=(text,)) for task, text in zip(tasks, texts, strict=True)
        )
        after = work.report()

        assert len(tasks) == 6
        assert after.streams == before.streams
        assert after.flows == before.flows
        assert after.held_bytes == 0
        page = await work.run.samples.page(TrajectoryQuery(limit=100))
        sample_facts = {(sample.outcome, sample.step, sample.flow) for sample in page.trajectories}
        assert sample_facts == {("evaluated", None, HELD_OUT)}


async def test_evaluations_get_only_their_share_of_a_node_during_training(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(at_start=True, prompts=50)) as work:
        lease = await work.nodes.leasing.lease(work.node, 8, versions={}, wait_s=0, evaluation_capacity=3)
        mine = [task for task in lease.tasks if task.pinned]
        assert (len(mine), len(lease.tasks)) == (3, 8)
        assert await work.lease(at_most=3) == []
        assert await work.lease(at_most=0) == []
        await work.push(map(answer, mine[:2]))
        assert len(await work.lease(at_most=3)) == 2


async def test_evaluations_continue_while_training_is_full_or_paused(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(at_start=True, prompts=50)) as work:
        lease = await work.nodes.leasing.lease(work.node, 1000, versions={}, wait_s=0)
        assert len(lease.tasks) == 8, "the gate is closed"
        assert len(await work.lease(at_most=3)) == 3
        work.run.pause_flow(FlowId("train-solver"), is_paused=True, actor="ada", reason="to look")
        assert len(await work.lease(20, at_most=3)) == 20, "without training tasks the whole node is available"
        assert await work.lease(20, at_most=0) == [], "a node with an evaluation share of zero gets none"


async def test_the_memory_limit_stops_training_but_not_evaluations(tmp_path: Path) -> None:
    settings = with_evaluation(at_start=True).model_copy(update={"memory_bytes": 1})
    async with evaluating(tmp_path, settings) as work:
        lease = await work.nodes.leasing.lease(work.node, 1, versions={}, wait_s=0)
        await work.push([Episode(task=lease.tasks[0].id, node=work.node, trajectories=(make.trajectory(),))])
        assert not work.run.may_issue
        assert len(await work.lease()) == 6


async def test_a_node_works_on_one_round_at_a_time_oldest_first(tmp_path: Path) -> None:
    settings = config(evaluations={name: evaluation(at_start=True, prompts=2) for name in ("first", "second")})
    async with evaluating(tmp_path, settings) as work:
        other = work.nodes.membership.join(facts("other")).id
        tasks = await work.lease(3)
        assert {task.flow for task in tasks} == {"first"}
        assert {task.flow for task in await work.lease(1, node=other)} == {"first"}
        assert await work.lease() == [], "the engine still serves the versions of the first round"
        assert await work.lease(node=other) == []
        await work.push(map(answer, tasks))
        assert {task.flow for task in await work.lease()} == {"second"}


async def test_results_of_another_than_the_pinned_version_are_refused(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(every_versions=3)) as work:
        await work.step_to(3)
        (task, *_) = await work.lease()
        for version in (2, 4):
            other = replace(task, pinned={SOLVER: Version(version)})
            with pytest.raises(InvalidInput) as caught:
                await work.push([answer(other)])
            assert caught.value.code == "evaluation.wrong_version"
        assert await work.push([answer(task)]) == ["accepted"]
        assert await work.push([answer(task)]) == ["duplicate"]


async def test_a_failed_sample_is_retried_then_left_out_of_the_scores(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(at_start=True, prompts=2)) as work:
        first, second, third, fourth = await work.lease()
        assert await work.push([broken(first)]) == ["retried"]
        (again,) = await work.lease()
        assert (again.id, again.attempt, again.pinned) == (first.id, 1, first.pinned)
        assert await work.push([broken(again), answer(second)]) == ["failed_engine", "accepted"]
        assert await work.push([broken(third, Boundary.WORKFLOW)]) == ["failed_workflow"], "a defect is not retried"
        await work.push([broken(fourth, Boundary.WORKFLOW)])

        (ended,) = work.ended()
        assert (ended.done, ended.masked, ended.failed) == (4, 3, 1)
        assert values(ended) == {"avg@2": 1.0, "pass@1": 1.0, "maj@2": 1.0}, "no prompt has two samples for pass@2"
        assert {score.error for score in ended.scores} == {None}


async def test_a_round_without_any_success_ends_without_scores(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(at_start=True, prompts=1, max_attempts=1)) as work:
        await work.push(map(broken, await work.lease()))
        (ended,) = work.ended()
        assert (ended.state, ended.failed, ended.scores) == (EvaluationState.DONE, 1, ())


async def test_a_running_round_survives_a_crash(tmp_path: Path) -> None:
    clock, settings = ManualClock(), with_evaluation(at_start=True)
    async with evaluating(tmp_path, settings, clock) as work:
        tasks = await work.lease()
        await work.push([answer(tasks[0], reward=0.0), answer(tasks[1]), answer(tasks[2])])
        before = work.report().evaluations
    async with evaluating(tmp_path, settings, clock) as work:
        assert work.report().evaluations == before
        assert await work.push([answer(tasks[0]), answer(tasks[2])]) == ["late", "duplicate"]
        assert await work.push([answer(tasks[3])]) == ["accepted"], "the node kept running during the restart"
        assert await work.lease() == [], "the other tasks may still be running on the node"
        clock.advance(GRACE_S + 0.1)
        work.nodes.membership.tick()
        again = await work.lease()
        assert {task.id for task in again} == {task.id for task in tasks[4:]}
        assert {task.pinned[SOLVER] for task in again} == {0}
        await work.push(map(answer, again))
        ended = work.ended()
        assert values(ended[0])["avg@2"] == pytest.approx(5 / 6)
    async with evaluating(tmp_path, settings, clock) as work:
        assert work.ended() == ended
        assert work.states() == [(1, "done")]
        await work.step_to(1)
        assert work.states() == [(1, "done")], "the first version was evaluated once"


async def test_ended_rounds_are_restored_into_a_new_archive(tmp_path: Path) -> None:
    clock, settings = ManualClock(), with_evaluation(at_start=True, prompts=2)
    async with evaluating(tmp_path, settings, clock) as work:
        await work.push(map(answer, await work.lease()))
        ended = work.ended()
        assert len(ended) == 1
        assert await work.kept() == ended
    for file in tmp_path.glob("history.sqlite*"):
        file.unlink()
    async with evaluating(tmp_path, settings, clock) as work:
        assert await work.kept() == ended


async def test_waiting_rounds_survive_a_crash(tmp_path: Path) -> None:
    settings = with_evaluation(every_versions=1)
    async with evaluating(tmp_path, settings) as work:
        await work.step_to(1)
        await work.step_to(2)
        await work.run.journal.wait_durable()
    async with evaluating(tmp_path, settings) as work:
        assert work.states() == [(1, "running"), (0, "waiting")]


async def test_tasks_of_a_silent_node_go_to_another_node(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(at_start=True)) as work:
        held = await work.lease()
        work.clock.advance(5.1)
        work.nodes.membership.tick()
        other = work.nodes.membership.join(facts("other")).id
        assert {task.id for task in await work.lease(node=other)} == {task.id for task in held}


async def test_rounds_of_any_published_version_can_be_requested(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation()) as work:
        await work.step_to(5)
        report = work.evaluator.request(HELD_OUT, {SOLVER: Version(3)}, actor="ada", reason="to compare")
        assert (report.round, report.versions, report.state) == (1, {SOLVER: 3}, EvaluationState.RUNNING)
        assert (report.actor, report.reason) == ("ada", "to compare")
        with pytest.raises(Conflict) as caught:
            work.evaluator.request(HELD_OUT, {}, actor="bob", reason="")
        assert caught.value.code == "evaluation.round_running"
        await work.push(map(answer, await work.lease()))
        assert work.evaluator.request(HELD_OUT, {}, actor="bob", reason="").versions == {SOLVER: 5}


async def test_an_invalid_evaluation_request_is_refused(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation()) as work:
        with pytest.raises(InvalidInput) as caught:
            work.evaluator.request(FlowId("held-in"), {}, actor="ada", reason="")
        assert caught.value.code == "evaluation.unknown"
        with pytest.raises(InvalidInput) as caught:
            work.evaluator.request(HELD_OUT, {PolicyId("verifier"): Version(0)}, actor="ada", reason="")
        assert caught.value.code == "evaluation.unknown_policy"
        with pytest.raises(InvalidInput) as caught:
            work.evaluator.request(HELD_OUT, {SOLVER: Version(1)}, actor="ada", reason="")
        assert caught.value.code == "evaluation.unknown_version"
        with pytest.raises(InvalidInput) as caught:
            work.evaluator.stop(HELD_OUT, actor="ada", reason="")
        assert caught.value.code == "evaluation.no_round_running"
    async with evaluating(tmp_path / "without", config()) as work:
        with pytest.raises(InvalidInput) as caught:
            work.evaluator.request(HELD_OUT, {}, actor="ada", reason="")
        assert caught.value.code == "evaluation.unknown"


async def test_a_stopped_round_keeps_only_scores_of_complete_prompts(tmp_path: Path) -> None:
    settings = with_evaluation(every_versions=1)
    async with evaluating(tmp_path, settings) as work:
        await work.step_to(1)
        await work.step_to(2)
        tasks = await work.lease(5)
        await work.push([answer(tasks[0]), answer(tasks[1]), answer(tasks[2], reward=0.0)])
        stop_message = work.evaluator.stop(HELD_OUT, actor="ada", reason="enough")
        assert "2 of 6" in stop_message
        assert work.states() == [(1, "stopped")]
        assert values(work.ended()[0])["avg@2"] == 1.0
        assert await work.push([answer(tasks[3]), answer(tasks[2])]) == ["late", "late"]
        assert await work.lease() == []
        assert work.report().held_bytes == 0
        again = work.evaluator.request(HELD_OUT, {}, actor="ada", reason="after all")
        assert (again.round, again.done) == (2, 0)
        fresh = await work.lease()
        assert len(fresh) == 6
        assert not {task.id for task in fresh} & {task.id for task in tasks}
        await work.run.journal.wait_durable()
    async with evaluating(tmp_path, settings) as work:
        assert work.states() == [(1, "stopped"), (2, "running")]


async def test_two_policies_are_pinned_and_scored_together(tmp_path: Path) -> None:
    together = evaluation(prompts=1).model_copy(update={"workflow": {"kind": "solve_and_verify"}})
    settings = config(policies=("solver", "verifier"), evaluations={"held-out": together})
    async with evaluating(tmp_path, settings) as work:
        await work.step_to(4)
        await work.trainers.pull(PolicyId("verifier"), Version(2), wait_s=0)
        work.evaluator.request(HELD_OUT, {}, actor="ada", reason="")
        tasks = await work.lease()
        assert tasks[0].pinned == {"solver": 4, "verifier": 2}
        first_try = replace(answer(tasks[0], reward=0.0).trajectories[0])
        await work.push([replace(answer(tasks[0]), trajectories=(first_try, *answer(tasks[0]).trajectories))])
        await work.push([answer(tasks[1], reward=0.0, text="")])
        scores = {(str(score.policy), score.name): score.value for score in work.ended()[0].scores}
        assert scores["solver", "avg@2"] == scores["verifier", "avg@2"] == 0.5, "the last try is the answer"
        assert scores["solver", "maj@2"] == 1.0, "empty answers do not vote"


async def test_each_role_has_its_own_scores_and_the_last_attempt_is_the_answer(tmp_path: Path) -> None:
    """A verifier that is right about a wrong answer does not make the answer correct."""

    def episode(task: Task, *role_rewards: tuple[str, float]) -> Episode:
        (policy, version), *_ = task.pinned.items()
        trajectories = tuple(
            replace(make.trajectory(policy=policy, version=version, reward=reward), role=role)
            for role, reward in role_rewards
        )
        return Episode(task=task.id, node=NodeId("any"), trajectories=trajectories)

    workflow = {"kind": "solve_and_verify", "solver": "solver", "verifier": "solver"}
    async with evaluating(tmp_path, with_evaluation(at_start=True, prompts=1, workflow=workflow)) as work:
        first, second = await work.lease()
        await work.push([episode(first, ("solver", 0.0), ("verifier", 1.0), ("solver.retry", 1.0))])
        await work.push([episode(second, ("solver", 0.0), ("verifier", 1.0))])
        scores = values(work.ended()[0])
        assert (scores["solver.avg@2"], scores["solver.pass@1"], scores["verifier.avg@2"]) == (0.5, 0.5, 1.0)
        assert "avg@2" not in scores


@pytest.mark.long
async def test_a_schedule_waits_for_every_policy(tmp_path: Path) -> None:
    together = evaluation(every_versions=2).model_copy(update={"workflow": {"kind": "solve_and_verify"}})
    settings = config(policies=("solver", "verifier"), evaluations={"held-out": together})
    async with evaluating(tmp_path, settings) as work:
        await work.step_to(9)
        assert work.states() == []
        await work.trainers.pull(PolicyId("verifier"), Version(2), wait_s=0)
        assert [evaluation.versions for evaluation in work.report().evaluations] == [{"solver": 9, "verifier": 2}]


async def test_a_restart_with_another_evaluation_dataset_is_refused(tmp_path: Path) -> None:
    other = config(evaluations={"held-out": evaluation(dataset={"kind": "letters", "length": 5})})
    async with evaluating(tmp_path, with_evaluation(at_start=True)) as work:
        await work.run.journal.wait_durable()
    with pytest.raises(InvalidInput) as caught:
        async with evaluating(tmp_path, other):
            pass
    assert caught.value.code == "dataset.changed"


def test_an_evaluation_cannot_have_the_name_of_a_flow() -> None:
    with pytest.raises(ValueError, match="'train-solver'"):
        config(evaluations={"train-solver": evaluation()})


async def test_rounds_are_requested_watched_paged_and_stopped_over_grpc(tmp_path: Path) -> None:
    settings = config(evaluations={"held-out": evaluation(share=0.5), "other": evaluation(prompts=1)})
    async with running(tmp_path, settings) as service:
        welcome = await service.nodes.join(facts())
        shares = {spec.id: spec.evaluation_share for spec in welcome.flows}
        assert shares == {"train-solver": None, "held-out": 0.5, "other": 0.25}
        await service.nodes.lease(welcome.node, 100, wait_s=1)
        waiting = asyncio.create_task(service.nodes.lease(welcome.node, 100, wait_s=10, evaluation_capacity=100))
        for number in (1, 2):
            requested = await service.control.evaluate(FlowId("other"), actor="ada", reason=f"number {number}")
            assert (requested.round, requested.state) == (number, EvaluationState.RUNNING)
            tasks = (await waiting).tasks
            assert await service.nodes.push(welcome.node, [answer(task) for task in tasks]) == ("accepted",) * 2
            waiting = asyncio.create_task(service.nodes.lease(welcome.node, 100, wait_s=10, evaluation_capacity=2))
        await service.control.evaluate(HELD_OUT, {SOLVER: Version(0)}, actor="ada", reason="")
        assert len((await waiting).tasks) == 2

        page = await service.control.evaluations(limit=2)
        assert [(evaluation.round, evaluation.flow, evaluation.state.value) for evaluation in page] == [
            (3, "held-out", "running"),
            (2, "other", "done"),
        ]
        (oldest,) = await service.control.evaluations(before=2)
        assert (oldest.round, oldest.reason, values(oldest)["avg@2"]) == (1, "number 1", 1.0)
        assert [evaluation.round for evaluation in await service.control.evaluations(flow=FlowId("other"))] == [2, 1]
        assert "round 3" in await service.control.stop_evaluation(HELD_OUT, actor="ada", reason="seen")
        with pytest.raises(InvalidInput) as caught:
            await service.control.evaluations(flow=FlowId("nope"))
        assert caught.value.code == "evaluation.unknown"
        kinds = [event.kind.value for event in (await service.control.report()).events if "eval" in event.kind.value]
        acts = [kind for kind in kinds if kind in ("evaluation_requested", "evaluation_stopped")]
        assert acts == ["evaluation_requested"] * 3 + ["evaluation_stopped"]
        assert {"evaluation_started", "evaluation_done"} < set(kinds)
    async with running(tmp_path, settings) as service:
        assert [evaluation.round for evaluation in await service.control.evaluations()] == [3, 2, 1]


async def test_partial_rollouts_of_a_round_are_continued_at_any_version(tmp_path: Path) -> None:
    async with evaluating(tmp_path, with_evaluation(at_start=True, prompts=1)) as work:
        (task, _) = await work.lease()
        await work.step_to(1)
        other = make.partial(task.id, make.recorded(version=1))
        with pytest.raises(InvalidInput) as caught:
            await work.nodes.results.hand_back(work.node, [other])
        assert caught.value.code == "evaluation.wrong_version"
        written = make.partial(task.id, make.recorded(version=0))
        assert await work.nodes.results.hand_back(work.node, [written]) == ["handed_back"]
        await work.step_to(9)
        (again,) = await work.lease()
        assert (again.id, again.pinned, len(again.resume_from)) == (task.id, task.pinned, 1)


async def test_a_stopped_round_discards_partial_rollouts(tmp_path: Path) -> None:
    settings = with_evaluation(at_start=True, prompts=1)
    async with evaluating(tmp_path, settings) as work:
        (task, _) = await work.lease()
        await work.nodes.results.hand_back(work.node, [make.partial(task.id)])
        assert work.report().held_bytes == 16
        work.evaluator.stop(HELD_OUT, actor="ada", reason="enough")
        assert work.report().held_bytes == 0
        await work.run.journal.wait_durable()
    async with evaluating(tmp_path, settings) as work:
        assert work.report().held_bytes == 0
        assert work.run.journal.rows("select * from unfinished") == []
