"""Crafting agents with one inventory and one budget."""

from collections.abc import Sequence

import pytest

from astraflow.contract.ids import PolicyId, PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.rewards import rewards
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from tests import make
from tests.fakes.policy import FakePolicy

EXACT = RewardScorer(rewards.build({"kind": "exact_match"}))
ROOT, CHILD = PolicyId("root"), PolicyId("child")


def item(name: str, count: int, *inputs: Json) -> Json:
    return {"item": name, "count": count, **({"inputs": list(inputs)} if inputs else {})}


PROMPT = Prompt(
    id=PromptId("crafts"),
    fields={
        "question": "craft 4 plank using 1 log\ncraft 1 box using 6 plank, 1 nail\n\nGoal: craft 1 box.",
        "answer": "",
        "goal": item("box", 1),
        "recipes": [
            item("plank", 4, item("log", 1)),
            item("box", 1, item("plank", 6), item("nail", 1)),
        ],
    },
)


async def episode(
    root: Sequence[str], child: Sequence[str] = (), *, prompt: Prompt = PROMPT, **options: object
) -> tuple[Sequence[Trajectory], FakePolicy, FakePolicy]:
    first, second = FakePolicy(*root), FakePolicy(*child)
    workflow = workflows.build({"kind": "recursive", "agent": "root", "subagent": "child", **options})
    task = make.task(prompt_given=prompt)
    return await workflow.run(task, {ROOT: first, CHILD: second}, EXACT), first, second


def outline(trajectories: Sequence[Trajectory]) -> list[tuple[str, int | None, float, Ending | None]]:
    return [(agent.role, agent.parent, agent.reward, agent.ending) for agent in trajectories]


@pytest.mark.long
@pytest.mark.anyio
async def test_a_plan_of_the_dataset_reaches_the_goal() -> None:
    crafting = datasets.build({"kind": "textcraft", "size": 20}, seed=1)
    for index in range(20):
        prompt = crafting.prompt(index)
        plan = str(prompt.fields["answer"]).splitlines()
        trajectories, _, _ = await episode([*plan, "finish done"], prompt=prompt, max_steps=200, max_turns=200)
        assert outline(trajectories) == [("agent", None, 1.0, Ending.DONE)]


@pytest.mark.anyio
async def test_agents_share_the_inventory_and_each_is_rewarded_for_its_own_targets() -> None:
    # Each round, the children act in the order in which they were started: logs, nail; planks, finish; planks; ...
    trajectories, root, child = await episode(
        ["spawn 6 plank | 1 nail | 9 rope", "craft 1 box using 6 plank, 1 nail", "finish the box is there"],
        [
            "get 2 log", "get 1 nail", "get 1 rope",
            "craft 4 plank using 1 log", "finish nail", "finish no rope",
            "craft 4 plank using 1 log",
            "finish planks",
        ],
    )  # fmt: skip

    assert outline(trajectories) == [
        ("agent", None, 1.0, Ending.DONE),
        ("subagent", 0, 1.0, Ending.DONE),
        ("subagent", 0, 1.0, Ending.DONE),
        ("subagent", 0, 0.0, Ending.DONE),
    ]
    assert "[sub-agent 1] planks\n\n[sub-agent 2] nail\n\n[sub-agent 3] no rope" in root.asked(1)
    assert "get 2 log" not in root.asked(1), "a parent sees only the last messages"
    assert "Your targets: 6 plank." in child.asked(0)


@pytest.mark.anyio
async def test_a_target_counts_only_while_it_is_in_the_inventory() -> None:
    early, _, _ = await episode(["finish"])
    assert outline(early) == [("agent", None, 0.0, Ending.DONE)]


@pytest.mark.anyio
async def test_all_agents_use_one_budget_and_it_is_never_exceeded() -> None:
    trajectories, _, child = await episode(
        ["spawn 4 plank | 1 nail", "inventory", "finish"],
        ["get 1 log", "get 1 nail", "craft 4 plank using 1 log", "finish", "inventory"],
        max_steps=4,
    )

    # 1 spawn, 2 items, 1 craft; then the planks cannot be asked for, and the root has no step left.
    assert outline(trajectories) == [
        ("agent", None, 0.0, Ending.BUDGET),
        ("subagent", 0, 0.0, Ending.BUDGET),
        ("subagent", 0, 1.0, Ending.DONE),
    ]
    assert "Steps left for all agents: 3." in child.asked(0)


@pytest.mark.anyio
async def test_spawning_ends_at_the_depth_and_the_number_of_children() -> None:
    trajectories, root, child = await episode(
        ["spawn 1 a | 1 b | 1 c", "finish"],
        ["spawn 1 d", "finish", "spawn 1 e", "finish"],
        max_depth=1,
        max_children=2,
    )

    assert [agent.role for agent in trajectories] == ["agent", "subagent", "subagent"]
    assert "[not started] 1 c" in root.asked(1)
    assert "No sub-agent was started." in child.asked(2)
    assert "spawn" not in child.asked(0)


@pytest.mark.anyio
async def test_unreadable_actions_end_an_agent() -> None:
    trajectories, _, _ = await episode(["hello", "spawn planks please", "craft"], max_malformed=2)

    assert outline(trajectories) == [("agent", None, 0.0, Ending.MALFORMED)]
