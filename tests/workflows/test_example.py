"""The example of a workflow with two policies: its rewards, and the promises of workflows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.conformance.workflows import WorkflowCheck
from astraflow.contract.ids import PolicyId
from astraflow.rewards import rewards
from astraflow.runtime.plugins import import_plugins
from astraflow.testing.plugins import WorkflowSuite
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.scripted.policies import in_order
from tests import make
from tests.fakes.policy import FakePolicy

EXAMPLE = Path(__file__).parents[2] / "recipes" / "examples" / "own_multi_policy.py"
EXACT = RewardScorer(rewards.build({"kind": "exact_match"}))


@pytest.fixture(autouse=True)
def example() -> None:
    import_plugins(str(EXAMPLE))


class TestThereAndBack(WorkflowSuite):
    @pytest.fixture
    def subject(self) -> Callable[[], WorkflowCheck]:
        return lambda: WorkflowCheck(spec={"kind": "there_and_back"}, prompt=make.prompt(), reply=in_order("dcba"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("there", "back", "expected"),
    [("dcba", "abcd", [1.0, 1.0]), ("dcba", "dcba", [1.0, 0.0]), ("aaaa", "abcd", [0.0, 1.0])],
)
async def test_each_role_has_its_own_reward(there: str, back: str, expected: list[float]) -> None:
    first, second = FakePolicy(there), FakePolicy(back)
    workflow = workflows.build({"kind": "there_and_back"})

    trajectories = await workflow.run(make.task(), {PolicyId("there"): first, PolicyId("back"): second}, EXACT)

    assert [trajectory.reward for trajectory in trajectories] == expected
    assert [(trajectory.role, trajectory.parent) for trajectory in trajectories] == [("there", None), ("back", 0)]
    assert f"rev {there}=" in second.asked(0)
