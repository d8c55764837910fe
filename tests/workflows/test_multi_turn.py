"""The workflow `multi_turn`: answers, feedback and retries in one trajectory."""

from collections.abc import Callable

import pytest

from astraflow.conformance.workflows import WorkflowCheck
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.spans import Author
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.rewards import rewards
from astraflow.testing.plugins import WorkflowSuite
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.scripted.policies import in_order
from tests import make
from tests.fakes.policy import FakePolicy

SOLVER = PolicyId("solver")
SCORER = RewardScorer(rewards.build({"kind": "exact_match"}))


async def answered(*replies: str, **options: object) -> tuple[FakePolicy, Trajectory]:
    policy = FakePolicy(*replies)
    workflow = workflows.build({"kind": "multi_turn", **options})
    (trajectory,) = await workflow.run(make.task(), {SOLVER: policy}, SCORER)
    return policy, trajectory


class TestMultiTurn(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        spec = {"kind": "multi_turn", "correct_threshold": 0.75}
        return lambda: WorkflowCheck(spec=spec, prompt=make.prompt(), reply=in_order("abcd", "dcab", "dcba"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("replies", "ending", "reward", "turn_rewards"),
    [
        (["dcba"], Ending.DONE, 1.0, (1.0,)),
        (["abcd", "dcba"], Ending.DONE, 0.5, (0.0, 1.0)),
        (["abcd", "acbd", "dcba"], Ending.DONE, 0.25, (0.0, 0.0, 1.0)),
        (["abcd", "acbd", "abdc"], Ending.TURNS, 0.0, (0.0, 0.0, 0.0)),
    ],
)
async def test_a_retry_counts_less(
    replies: list[str], ending: Ending, reward: float, turn_rewards: tuple[float, ...]
) -> None:
    policy, trajectory = await answered(*replies, turn_discount=0.5, feedback="Wrong.")

    assert (trajectory.ending, trajectory.reward, trajectory.turn_rewards) == (ending, reward, turn_rewards)
    assert trajectory.turn_discounts == (0.5,) * len(replies)
    assert trajectory.answer == replies[-1]
    assert len(policy.prompts) == len(replies) == trajectory.turns
    assert policy.asked(-1).count("<|im_start|>user\nWrong.<|im_end|>") == len(replies) - 1
    speakers = [span.speaker for span in trajectory.spans if span.author is Author.CONTEXT]
    assert speakers == ["", *["environment"] * (len(replies) - 1)]


@pytest.mark.anyio
async def test_other_limits_end_it_too() -> None:
    _, repeated = await answered("abcd", "abcd", max_repeats=2, max_turns=9)
    policy, full = await answered("abcd", max_context=80, system="Be brief.")

    assert repeated.ending is Ending.REPEATED
    assert full.ending is Ending.CONTEXT
    assert policy.asked(0).startswith("<|im_start|>system\nBe brief.")
