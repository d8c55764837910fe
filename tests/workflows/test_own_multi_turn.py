"""The example of a workflow with several turns: its feedback and reward, and the promises of workflows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.conformance.workflows import WorkflowCheck
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.rewards import rewards
from astraflow.runtime.plugins import import_plugins
from astraflow.testing.plugins import WorkflowSuite
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.scripted.policies import in_order
from tests import make
from tests.fakes.policy import FakePolicy

EXAMPLE = Path(__file__).parents[2] / "recipes" / "examples" / "own_multi_turn.py"
EXACT = RewardScorer(rewards.build({"kind": "exact_match"}))


@pytest.fixture(autouse=True)
def example() -> None:
    import_plugins(str(EXAMPLE))


class TestGuided(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        return lambda: WorkflowCheck(spec={"kind": "guided"}, prompt=make.prompt(), reply=in_order("dcaa", "dcba"))


@pytest.mark.anyio
async def test_the_policy_reads_how_much_is_right_until_its_answer_is_right() -> None:
    policy = FakePolicy("dcaa", "dcba")
    workflow = workflows.build({"kind": "guided"})

    (trajectory,) = await workflow.run(make.task(), {PolicyId("solver"): policy}, EXACT)

    assert "3 of 4 letters are right" in policy.asked(1)
    assert (trajectory.reward, trajectory.ending, trajectory.metrics) == (1.0, Ending.DONE, {"turns": 2})


@pytest.mark.anyio
async def test_a_limit_of_turns_ends_the_episode_with_the_reward_of_the_last_answer() -> None:
    policy = FakePolicy("aaaa", "dcaa")
    workflow = workflows.build({"kind": "guided", "max_turns": 2})

    (trajectory,) = await workflow.run(make.task(), {PolicyId("solver"): policy}, EXACT)

    assert (trajectory.reward, trajectory.ending) == (0.0, Ending.TURNS)
