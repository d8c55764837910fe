"""Agents that start others: rewards, parents, order, limits."""

from collections.abc import Sequence

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.rewards import rewards
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.route import parse_expert
from astraflow.workflows.spawn import parse_tasks
from tests import make
from tests.fakes.policy import FakePolicy

EXACT = RewardScorer(rewards.build({"kind": "exact_match"}))
LEAD, WORKER = PolicyId("lead"), PolicyId("worker")


@pytest.mark.timeout(60)  # a search that backtracks takes many minutes
@pytest.mark.parametrize("text", ["<task>" + "\n" * 20_000, "<task> " * 50_000, "<task>" + " \n" * 50_000 + "x"])
def test_tags_without_an_end_are_read_in_linear_time(text: str) -> None:
    assert parse_tasks(text) == []
    assert parse_expert(text.replace("task", "expert"), ("small", "large")) is None


async def episode(
    lead: Sequence[str], worker: Sequence[str] = (), **options: object
) -> tuple[Sequence[Trajectory], FakePolicy, FakePolicy]:
    first, second = FakePolicy(*lead), FakePolicy(*worker)
    workflow = workflows.build({"kind": "spawn", "lead": "lead", "worker": "worker", **options})
    return await workflow.run(make.task(), {LEAD: first, WORKER: second}, EXACT), first, second


def tree(trajectories: Sequence[Trajectory]) -> list[tuple[str, int | None, int | None, float, Ending | None]]:
    return [
        (agent.role, agent.parent, agent.parent_turn, agent.metrics["depth"], agent.ending) for agent in trajectories
    ]


@pytest.mark.anyio
async def test_workers_answer_the_lead_and_share_its_reward() -> None:
    trajectories, lead, worker = await episode(
        ["I divide it. <task>reverse ab</task> <task>reverse cd</task>", "dcba"], ["ba", "dc"]
    )

    assert tree(trajectories) == [
        ("lead", None, None, 0.0, Ending.DONE),
        ("worker", 0, 0, 1.0, Ending.DONE),
        ("worker", 0, 0, 1.0, Ending.DONE),
    ]
    assert [(agent.policy, agent.reward) for agent in trajectories] == [(LEAD, 1.0), (WORKER, 1.0), (WORKER, 1.0)]
    assert trajectories[0].turns == 2
    assert "[sub-agent 1] ba\n\n[sub-agent 2] dc" in lead.asked(1)
    assert worker.asked(0) == "<|im_start|>user\nreverse ab<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.anyio
async def test_a_lead_may_answer_alone() -> None:
    trajectories, _, _ = await episode(["abcd"])

    assert tree(trajectories) == [("lead", None, None, 0.0, Ending.DONE)]
    assert trajectories[0].reward == 0.0


@pytest.mark.anyio
async def test_workers_start_workers_down_to_the_depth() -> None:
    trajectories, lead, _ = await episode(
        ["<task>a</task>", "dcba"], ["<task>b</task>", "<task>too deep</task>", "b is done", "a is done"], max_depth=2
    )

    assert tree(trajectories) == [
        ("lead", None, None, 0.0, Ending.DONE),
        ("worker", 0, 0, 1.0, Ending.DONE),
        ("worker", 1, 0, 2.0, Ending.DONE),
    ]
    assert "[sub-agent 1] a is done" in lead.asked(1)
    assert trajectories[2].turns == 2


@pytest.mark.anyio
async def test_agents_beyond_the_limits_are_refused_and_the_others_work() -> None:
    many = "<task>x</task>" * 5
    trajectories, lead, _ = await episode([many, many, "dcba"], ["done"] * 8, max_children=3, max_agents=6)

    assert [agent.role for agent in trajectories] == ["lead", *["worker"] * 5]
    assert [agent.parent_turn for agent in trajectories] == [None, 0, 0, 0, 1, 1]
    assert "[not started]" in lead.asked(1)
    assert "[not started]" in lead.asked(2)


@pytest.mark.anyio
async def test_a_lead_without_turns_left_has_given_no_answer() -> None:
    trajectories, _, _ = await episode(["<task>a</task>", "<task>b</task>"], ["dcba"], max_turns=2)

    assert tree(trajectories) == [("lead", None, None, 0.0, Ending.TURNS), ("worker", 0, 0, 1.0, Ending.DONE)]
    assert {agent.reward for agent in trajectories} == {0.0}


@pytest.mark.anyio
async def test_a_worker_that_ends_at_its_limit_is_reported() -> None:
    trajectories, lead, _ = await episode(
        ["<task>a</task>", "dcba"], ["<task>b</task>"] * 4, max_turns=3, max_malformed=9
    )

    assert trajectories[1].ending is Ending.TURNS
    assert "[sub-agent 1] <task>b</task>" in lead.asked(1)
