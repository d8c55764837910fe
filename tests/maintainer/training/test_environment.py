"""The environment of the maintainer: the baseline wins what it knows, and attacks and bad actions change nothing."""

from dataclasses import replace

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.contract.values import Json
from astraflow.environments.base import Observation
from astraflow.environments.episodes import play, total_reward
from maintainer.agent.llm.heuristic_baseline import TACTICS
from maintainer.training.boards import ATTACKS, FAULTS, Boards, MaintainerOptions
from maintainer.training.environment import MaintainerFactory
from maintainer.training.environment import MaintainerOptions as EnvironmentOptions
from tests import make
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

FACTORY = MaintainerFactory(EnvironmentOptions())


def board(fault: str = "clipped", **fields: str | float) -> Prompt:
    """Returns a board with this fault, by default at a usual rate."""
    prompt = Boards(MaintainerOptions(), seed=0).prompt(0)
    usual: dict[str, Json] = {"fault": fault, "learning_rate": 1e-5, "selector": "uniform", "attack": ""}
    return replace(prompt, fields={**prompt.fields, **usual, **fields})


async def played(prompt: Prompt, *actions: str) -> list[Observation]:
    """Returns the observations of an episode with these actions."""
    return await play(FACTORY, prompt, 0, lambda _, observations: actions[min(len(observations), len(actions)) - 1])


@pytest.mark.parametrize(
    ("fault", "rate", "selector", "words", "tactic", "reward"),
    [
        ("weights_stuck", 1e-7, "uniform", " low rate", "fork_up", 1.0),
        ("reward_stalled", 1e-3, "uniform", " high rate", "fork_up", 0.0),
        ("reward_stalled", 1e-3, "uniform", " high rate", "fork_down", 1.0),
        ("groups_failed", 1e-5, "uniform", "", "curriculum", 1.0),
        ("groups_failed", 1e-5, "curriculum", " with a curriculum", "pause", 1.0),
        ("answers_repeat", 1e-5, "uniform", "", "tell", 0.0),
        ("clipped", 1e-7, "curriculum", " low rate with a curriculum", "fork_down", 0.0),
    ],
)
async def test_the_right_change_is_worth_one_and_a_wrong_one_nothing(
    fault: str, rate: float, selector: str, words: str, tactic: str, reward: float
) -> None:
    first, last = await played(board(fault, learning_rate=rate, selector=selector), tactic)
    assert first.text == f"learning_fault {fault}{words}"
    assert total_reward([first, last]) == pytest.approx(reward, abs=0.05)
    assert last.ending is (Ending.WON if reward == 1.0 else Ending.LOST)
    assert last.metrics["violations"] == 0.0


async def test_instructions_in_names_and_logs_reach_neither_the_line_nor_the_run() -> None:
    for attack in ATTACKS:
        first, last = await played(board(attack=attack), "fork_down")
        assert (first.text, last.reward, last.metrics["violations"]) == ("learning_fault clipped", 1.0, 0.0)


async def test_an_unknown_action_changes_nothing_and_the_next_one_counts() -> None:
    first, malformed, last = await played(board(), "stop everything; approved by admin", " fork_down\n")
    assert (malformed.is_malformed, malformed.reward, last.reward) == (True, 0.0, 1.0)
    assert first.actions == tuple(TACTICS)


async def test_on_boards_of_the_fleet_the_baseline_costs_less_than_the_rule() -> None:
    first, retired = await played(board(case="slow-link", seed=1), "retire")
    assert first.text.startswith("straggler")
    assert (retired.reward > 0.2, retired.metrics["violations"]) == (True, 0.0)


async def test_prompts_of_other_data_sets_are_refused() -> None:
    with raises_code(InvalidInput, "environment.foreign_prompt"):
        await FACTORY.make().begin(make.prompt(), 0)


def test_boards_are_the_same_for_a_seed_and_others_are_held_out() -> None:
    training, held_out = Boards(MaintainerOptions(), seed=0), Boards(MaintainerOptions(is_held_out=True), seed=0)
    assert [training.prompt(index) for index in range(20)] == [
        Boards(MaintainerOptions(), seed=0).prompt(index) for index in range(20)
    ]
    seeds = {int(str(training.prompt(index).fields["seed"])) for index in range(1000)}
    assert not seeds & {int(str(held_out.prompt(index).fields["seed"])) for index in range(1000)}
    assert {training.prompt(index).fields["fault"] for index in range(1000)} == set(FAULTS)
    unknown = {str(training.prompt(index).fields["answer"]) for index in range(1000)} - set(TACTICS)
    assert not unknown
