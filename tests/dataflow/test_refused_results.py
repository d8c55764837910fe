"""Nodes whose results break limits: the run goes on with the others, and each refusal has a cause."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.rollouts.partial_rollouts import PartialRollout, RecordedGeneration
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.wire.channel import dial
from astraflow.wire.codecs.data import encode_push
from tests import make
from tests.dataflow.running import Service, config, evaluation, facts, running
from tests.dataflow.test_hostile import Stranger
from tests.dataflow.test_joining import dataflow, node, own
from tests.dataflow.test_names_and_leases import credential
from tests.dataflow.test_service import assert_balanced, step_of

pytestmark = pytest.mark.anyio
SOLVER = PolicyId("solver")
ROWS = RowLimits(vocabulary=32, tokens=64)


def result(task: Task, **changes: Any) -> Episode:
    """Returns a result of a task, with changes of its trajectory."""
    trajectory = replace(make.trajectory(reward=float(task.member)), **changes)
    return Episode(task=task.id, node=NodeId("any"), trajectories=(trajectory,), attempt=task.attempt)


def foreign_token(task: Task) -> Episode:
    return result(task, tokens=np.full(8, 32, np.int32))


async def attach(service: Service, version: int = 0) -> None:
    await service.trainer().attach(version=Version(version), backend="test", is_simulated=False, limits=ROWS)


async def trained(service: Service, version: int) -> list[Trajectory]:
    """Pulls and acknowledges the next batch; returns its trajectories."""
    batch = await service.trainer().pull_batch(version=Version(version), wait_s=10)
    assert batch is not None
    assert await service.trainer().report_step(step_of(batch))
    return [row.trajectory for row in batch.rows]


async def causes(service: Service, kind: RecordKind = RecordKind.PUSH_REFUSED) -> list[str]:
    events = (await service.control.events(EventQuery(kinds=(kind,)))).events
    return [render(event) for event in events]


POISON: dict[str, Callable[[Task], Episode]] = {
    "token_id": foreign_token,
    "tokens": lambda task: result(task, tokens=np.zeros(65, np.int32), spans=make.trajectory(prompt_tokens=60).spans),
    "logprob": lambda task: result(task, logprobs=np.full(5, -1e4, np.float32)),
    "turn_reward": lambda task: result(task, turn_rewards=(9e8,)),
    "metric": lambda task: result(task, metrics={"m": 1e17}),
    "trajectories": lambda task: replace(result(task), trajectories=(make.trajectory(),) * 50),
}


@pytest.mark.parametrize("limit", POISON)
async def test_a_poisonous_result_is_a_failure_and_another_node_completes_the_group(tmp_path: Path, limit: str) -> None:
    async with running(tmp_path, config(batch_groups=1)) as service:
        await attach(service)
        bad, good = [(await service.nodes.join(facts(name))).node for name in ("bad", "good")]
        tasks = (await service.nodes.lease(bad, 2, wait_s=2)).tasks
        assert await service.nodes.push(bad, list(map(POISON[limit], tasks))) == ("retried", "retried")

        again = (await service.nodes.lease(good, 2, wait_s=5)).tasks
        assert {(task.id, task.attempt) for task in again} == {(task.id, 1) for task in tasks}
        assert await service.nodes.push(good, list(map(result, again))) == ("accepted", "accepted")
        assert sorted(item.reward for item in await trained(service, 0)) == [0.0, 1.0]

        report = await service.control.report()
        assert report.flows[0].refused == {limit: 2}
        assert report.flows[0].episodes == {"retried": 2, "accepted": 2}
        assert_balanced(report)
        (cause,) = await causes(service)
        assert cause.startswith(f"{tasks[0].id}: cannot use the result: ")
        assert cause.endswith("(and 1 others of 2 results)")


async def test_a_node_that_pushes_only_refused_results_gets_no_tasks_and_others_train_on(tmp_path: Path) -> None:
    """The node leases all it can; each of its results would use up an attempt of a task."""
    async with running(tmp_path, config(batch_groups=1, max_staleness=3, max_attempts=2)) as service:
        await attach(service)
        bad, good = [(await service.nodes.join(facts(name))).node for name in ("bad", "good")]
        for version in range(5):
            if tasks := (await service.nodes.lease(bad, 100, wait_s=0)).tasks:
                await service.nodes.push(bad, list(map(foreign_token, tasks)))
            tasks = (await service.nodes.lease(good, 2, wait_s=5)).tasks
            await service.nodes.push(
                good, [result(task, spans=make.trajectory(version=version).spans) for task in tasks]
            )
            await trained(service, version)
        report = await service.control.report()
        assert report.streams[0].training.steps == 5
        assert report.flows[0].dropped == {}, "no group has lost a member"
        assert report.flows[0].refused["token_id"] <= 8 + 1, "all the gate allowed once, then one at most"
        assert_balanced(report)
        assert len(await causes(service, RecordKind.LEASES_WITHHELD)) == 1


async def test_a_withheld_node_returns_its_tasks(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await attach(service)
        bad, good = [(await service.nodes.join(facts(name))).node for name in ("bad", "good")]
        tasks = (await service.nodes.lease(bad, 8, wait_s=2)).tasks
        await service.nodes.push(bad, list(map(foreign_token, tasks[:4])))
        returned = (await service.nodes.lease(good, 8, wait_s=5)).tasks
        assert {task.id for task in returned} == {task.id for task in tasks}
        assert await service.nodes.push(bad, [result(tasks[5])]) == ("accepted",), "a result within limits counts"


async def test_limits_of_the_trainer_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await attach(service)
    async with running(tmp_path) as service:
        bad = (await service.nodes.join(facts("bad"))).node
        (task, *_) = (await service.nodes.lease(bad, 4, wait_s=2)).tasks
        assert await service.nodes.push(bad, [foreign_token(task)]) == ("retried",)


async def test_before_a_trainer_is_attached_the_limits_of_the_flow_hold(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        member = (await service.nodes.join(facts())).node
        first, second, *_ = (await service.nodes.lease(member, 4, wait_s=2)).tasks
        long = replace(result(second), trajectories=(make.trajectory(prompt_tokens=2, model_tokens=300_000),))
        assert await service.nodes.push(member, [foreign_token(first), long]) == ("accepted", "retried")


async def test_poisonous_tokens_that_are_handed_back_are_not_continued(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await attach(service)
        bad, good = [(await service.nodes.join(facts(name))).node for name in ("bad", "good")]
        (task,) = (await service.nodes.lease(bad, 1, wait_s=2)).tasks
        generation = Generation(
            tokens=np.array([1, 32], np.int32),
            logprobs=np.full(2, -0.5, np.float32),
            spans=(VersionSpan(version=Version(0), length=2),),
            finish=Finish.ABORT,
        )
        recorded = RecordedGeneration(policy=SOLVER, request=b"digest", generation=generation)
        partial = PartialRollout(task=task.id, attempt=0, generations=(recorded,))

        assert await service.nodes.hand_back(bad, [partial]) == ("handed_back",)

        again = (await service.nodes.lease(good, 8, wait_s=2)).tasks
        assert next(item for item in again if item.id == task.id).resume_from == ()
        report = await service.control.report()
        assert report.flows[0].refused == {"token_id": 1}
        assert report.flows[0].partial_rollouts["stored"] == 0
        assert "handed back" in (await causes(service))[0]


async def test_a_policy_that_takes_no_part_in_the_flow_is_refused(tmp_path: Path) -> None:
    """Its rewards would count for a policy that the flow does not train."""
    async with running(tmp_path, config(policies=("solver", "judge"))) as service:
        member = (await service.nodes.join(facts())).node
        tasks = (await service.nodes.lease(member, 64, wait_s=2)).tasks
        foreign = {"train-solver": PolicyId("judge"), "train-judge": SOLVER}
        results = [result(task, policy=foreign[task.flow]) for task in tasks]
        assert set(await service.nodes.push(member, results)) == {"retried"}
        report = await service.control.report()
        assert {flow.id: set(flow.refused) for flow in report.flows} == {flow: {"policy"} for flow in foreign}
        assert all(stream.reward_produced == 0 for stream in report.streams)


async def test_the_result_of_an_evaluation_is_held_to_its_limits(tmp_path: Path) -> None:
    evaluations = {"held-out": evaluation(at_start=True, prompts=1, samples=1, reward_range=[0, 1])}
    async with running(tmp_path, config(evaluations=evaluations)) as service:
        await attach(service)
        member = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(member, 1, wait_s=2, evaluation_capacity=1)
        (task,) = lease.tasks
        assert task.flow == "held-out"
        assert await service.nodes.push(member, [result(task, turn_rewards=(5.0,), reward=0.5)]) == ("retried",)
        (task,) = (await service.nodes.lease(member, 1, wait_s=2, evaluation_capacity=1)).tasks
        assert await service.nodes.push(member, [result(task, tokens=np.full(8, 40, np.int32))]) == ("failed_engine",)
        (ended,) = await service.control.evaluations()
        assert (ended.masked, ended.failed) == (1, 1)


async def test_a_push_that_cannot_be_decoded_is_noted_for_the_node(tmp_path: Path) -> None:
    own_credential = credential("bad", "gpu")
    async with dataflow(tmp_path) as service, node(service, own_credential) as client:
        member = (await client.join(own("bad", "gpu"))).node
        tasks = (await client.lease(member, 8, wait_s=2)).tasks
        body = encode_push(member, list(map(result, tasks)))[:-4]
        async with dial(service.address, token=own_credential) as link:
            for _ in range(4):
                assert isinstance(await Stranger(link.channel, own_credential).send("Push", body), InvalidInput)
        assert len(await service.events("push_refused")) == 1
        assert await service.events("leases_withheld")
        assert (await client.lease(member, 8, wait_s=0)).tasks == ()
