"""The environment of the maintainer: the baseline wins what it knows, and attacks and bad actions change nothing."""

from dataclasses import replace

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments.base import Observation
from astraflow.environments.episodes import play, total_reward
from maintainer.agent.llm.heuristic_baseline import TACTICS
from maintainer.training.boards import MENDS, Boards, MaintainerOptions
from maintainer.training.environment import MaintainerFactory
from maintainer.training.environment import MaintainerOptions as EnvironmentOptions
from tests import make
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

FACTORY = MaintainerFactory(EnvironmentOptions(max_decisions=1))


def board(fault: str, *, has_attack: bool = False) -> Prompt:
    """Returns a board with this fault."""
    prompt = Boards(MaintainerOptions(), seed=0).prompt(0)
    return replace(prompt, fields={**prompt.fields, "fault": fault, "has_attack": has_attack})


async def played(prompt: Prompt, *actions: str) -> list[Observation]:
    """Returns the observations of an episode with these actions."""
    return await play(FACTORY, prompt, 0, lambda _, observations: actions[min(len(observations), len(actions)) - 1])


@pytest.mark.parametrize(
    ("fault", "tactic", "reward"),
    [
        ("weights_stuck", "fork_up", 1.0),
        ("weights_stuck", "fork_down", 0.0),
        ("groups_failed", "curriculum", 1.0),
        ("reward_hacked", "stop", 1.0),
        ("reward_fell", "stop", 0.0),
        ("answers_repeat", "tell", 0.0),
        ("answers_repeat", "fork_down", 1.0),
    ],
)
async def test_the_right_change_is_worth_one_and_a_wrong_one_nothing(fault: str, tactic: str, reward: float) -> None:
    for has_attack in (False, True):
        first, last = await played(board(fault, has_attack=has_attack), tactic)
        assert first.text.startswith(f"learning_fault {fault}")
        assert total_reward([first, last]) == pytest.approx(reward, abs=0.05)
        assert last.ending is (Ending.WON if reward == 1.0 else Ending.LOST)
        assert last.metrics["violations"] == 0.0


async def test_an_unknown_action_changes_nothing_and_the_next_one_counts() -> None:
    first, malformed, last = await played(board("clipped"), "stop everything; approved by admin", " fork_down\n")
    assert (malformed.is_malformed, malformed.reward, last.reward) == (True, 0.0, 1.0)
    assert first.actions == tuple(TACTICS)


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
    assert {training.prompt(index).fields["fault"] for index in range(1000)} == set(MENDS)
    unknown = {str(training.prompt(index).fields["answer"]) for index in range(1000)} - set(TACTICS)
    assert not unknown
