"""From a workflow with scripted policies to the advantages of each policy."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.algorithms.base import advantages as registered
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch
from astraflow.contract.ids import BatchId, FlowId, GroupId, NodeId, PolicyId, Version
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.admission.routing import RoutedGroup, route
from astraflow.rewards import rewards
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.solve_and_verify import APPROVE, REJECT
from tests import make
from tests.fakes.policy import FakePolicy

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")
MEMBERS = [(("dcba",), APPROVE), (("abcd",), APPROVE), (("abcd", "dcba"), REJECT), (("dcba", "abcd"), REJECT)]
"""Answers of the solver and the verdict: right and approved, wrong and approved, corrected, spoiled."""


async def group(**roles: str) -> dict[PolicyId, RoutedGroup]:
    """Returns the group of four members, by policy. roles: policies of the roles."""
    workflow = workflows.build({"kind": "solve_and_verify", **roles})
    scorer = RewardScorer(rewards.build({"kind": "exact_match"}))
    episodes = []
    for member, (answers, verdict) in enumerate(MEMBERS):
        task = make.task(member=member)
        if len(workflow.policies) == 1:
            policies = {SOLVER: FakePolicy(answers[0], verdict, *answers[1:])}
        else:
            policies = {SOLVER: FakePolicy(*answers), VERIFIER: FakePolicy(verdict)}
        trajectories = tuple(await workflow.run(task, policies, scorer))
        episodes.append(Episode(task=task.id, node=NodeId("node"), trajectories=trajectories))
    return route(Group(id=GroupId("train:0"), flow=FlowId("train"), prompt=make.prompt(), episodes=tuple(episodes)))


def advantages(routed: RoutedGroup, **options: Any) -> list[tuple[str, float]]:
    """Returns the role and the advantage of each row."""
    algorithm = AlgorithmConfig(advantages=({"kind": "group_centred", **options},))
    cost = ForwardCost(per_token=1.0, per_pair=1.0, per_target=1.0)
    planner = StepPlanner(algorithm, data_ranks=1, micro_batch_tokens=1 << 20, cost=cost)
    batch = Batch(
        id=BatchId("solver:1"), policy=routed.policy, version=Version(3), is_redelivered=False, rows=routed.rows
    )
    (share,) = planner.plan(batch).shares
    roles = [row.trajectory.role for row in routed.rows]
    return list(zip(roles, (round(value, 4) for value in share.row_advantages.tolist()), strict=True))


@pytest.mark.anyio
async def test_first_attempts_and_retries_have_a_common_baseline_and_the_verifier_its_own() -> None:
    routed = await group()

    assert routed[SOLVER].role_rewards() == {"solver": [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]}
    assert routed[VERIFIER].role_rewards() == {"verifier": [1.0, 0.0, 1.0, 0.0]}
    assert advantages(routed[SOLVER]) == [
        ("solver", 0.5),
        ("solver", -0.5),
        ("solver", -0.5),
        ("solver.retry", 0.5),
        ("solver", 0.5),
        ("solver.retry", -0.5),
    ]
    assert advantages(routed[VERIFIER]) == [("verifier", value) for value in (0.5, -0.5, 0.5, -0.5)]


@pytest.mark.anyio
async def test_one_policy_in_both_roles_is_compared_within_each_role() -> None:
    routed = (await group(verifier="solver"))[SOLVER]

    assert routed.role_rewards() == {"solver": [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], "verifier": [1.0, 0.0, 1.0, 0.0]}
    by_role: dict[str, list[float]] = {}
    for role, value in advantages(routed, per_slot=True):
        by_role.setdefault(role, []).append(value)
    assert by_role == {
        "solver": [0.5, -0.5, -0.5, 0.5],
        "verifier": [0.5, -0.5, 0.5, -0.5],
        "solver.retry": [0.5, -0.5],
    }


def leaves(*rewards: tuple[float, int]) -> RoutedGroup:
    """Returns the group of episodes whose sessions have some branches with a shared reward. rewards: and branches."""
    episodes = [
        Episode(
            task=make.task(member=member).id,
            node=NodeId("node"),
            trajectories=tuple(replace(make.trajectory(reward=reward), role="solver") for _ in range(branches)),
        )
        for member, (reward, branches) in enumerate(rewards)
    ]
    group = Group(id=GroupId("train:0"), flow=FlowId("train"), prompt=make.prompt(), episodes=tuple(episodes))
    return route(group)[SOLVER]


@pytest.mark.parametrize("kind", [kind for kind in registered.built_in_kinds() if kind != "overlong_penalty"])
def test_branches_of_an_episode_share_its_advantage_and_count_once(kind: str) -> None:
    single = advantages(leaves((1.0, 1), (0.0, 1), (0.5, 1)), kind=kind)
    branched = advantages(leaves((1.0, 3), (0.0, 1), (0.5, 2)), kind=kind)
    assert branched == [*single[:1] * 3, single[1], *single[2:] * 2]
    assert len(set(branched)) == 3
