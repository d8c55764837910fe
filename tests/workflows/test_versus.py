"""Two players in real games."""

from collections.abc import Sequence

import pytest

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.datasets import datasets
from astraflow.rewards import rewards
from astraflow.runtime.plugins import ManagedPlugin
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from tests import make
from tests.fakes.policy import FakePolicy

EXACT = RewardScorer(rewards.build({"kind": "exact_match"}))


def game(name: str) -> Prompt:
    return datasets.build({"kind": "games", "games": [name]}, seed=3).prompt(0)


async def play(
    name: str, first: Sequence[str], second: Sequence[str], **options: object
) -> tuple[Sequence[Trajectory], FakePolicy, FakePolicy]:
    players = FakePolicy(*first), FakePolicy(*second)
    spec = {"kind": "versus", "game": {"kind": "textarena"}, "player_1": "one", "player_2": "two", **options}
    workflow = workflows.build(spec)
    assert isinstance(workflow, ManagedPlugin)
    await workflow.start()
    try:
        policies = {PolicyId("one"): players[0], PolicyId("two"): players[1]}
        return await workflow.run(make.task(prompt_given=game(name)), policies, EXACT), *players
    finally:
        await workflow.close()


def outline(trajectories: Sequence[Trajectory]) -> list[tuple[str, str, float, Ending | None, int]]:
    return [
        (trajectory.policy, trajectory.role, trajectory.reward, trajectory.ending, trajectory.turns)
        for trajectory in trajectories
    ]


@pytest.mark.anyio
async def test_the_winner_and_the_loser_have_a_trajectory_each() -> None:
    trajectories, first, second = await play("TicTacToe-v0", ["I begin. [0]", "[1]", "[2]"], ["[3]", "[4]"])

    assert outline(trajectories) == [
        ("one", "player_1", 1.0, Ending.WON, 3),
        ("two", "player_2", -1.0, Ending.LOST, 2),
    ]
    assert "I begin" not in second.asked(1), "thoughts are private"
    assert first.asked(1).startswith(first.asked(0)), "a conversation only grows"


@pytest.mark.anyio
async def test_a_player_without_turns_left_loses() -> None:
    trajectories, _, _ = await play("TicTacToe-v0", ["[0]"], ["[3]"], max_turns=1)

    assert outline(trajectories) == [
        ("one", "player_1", -1.0, Ending.TURNS, 1),
        ("two", "player_2", 1.0, Ending.WON, 1),
    ]


@pytest.mark.long
@pytest.mark.anyio
async def test_breaking_the_rules_twice_loses_the_game() -> None:
    trajectories, _, _ = await play("TicTacToe-v0", ["[99]", "[99]"], [])

    assert outline(trajectories) == [("one", "player_1", -1.0, Ending.MALFORMED, 2)]


@pytest.mark.anyio
async def test_one_policy_plays_both_sides() -> None:
    both = FakePolicy("[0]", "[3]", "[1]", "[4]", "[2]")
    workflow = workflows.build({"kind": "versus", "game": {"kind": "textarena"}})

    trajectories = await workflow.run(make.task(prompt_given=game("TicTacToe-v0")), {PolicyId("player"): both}, EXACT)

    assert workflow.policies == (PolicyId("player"),)
    assert [(trajectory.role, trajectory.reward) for trajectory in trajectories] == [
        ("player_1", 1.0),
        ("player_2", -1.0),
    ]
