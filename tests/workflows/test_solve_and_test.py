"""Coder and tester with real runs of code in the local sandbox."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from astraflow.contract.ids import PolicyId, PromptId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.values import Json
from astraflow.rewards import rewards
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.solve_and_test import SolveAndTest
from tests import make
from tests.errors import raises_code
from tests.fakes.policy import FakePolicy

CODER, TESTER = PolicyId("solver"), PolicyId("tester")
SANDBOX: dict[str, Any] = {"kind": "local", "workers": 1, "allow_weak": True}
RIGHT = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
WRONG = "```python\na, b = map(int, input().split())\nprint(a - b)\n```"
PROMPT = Prompt(
    id=PromptId("sum"),
    fields={
        "question": "Add two numbers.\n\nExample:\n5 5 -> 10",
        "problem": "Add two numbers.\n\nExample:\n5 5 -> 10",
        "answer": "print(sum(map(int, input().split())))",
        "tests": [{"kind": "stdin", "input": "2 3", "output": "5"}, {"kind": "stdin", "input": "1 1", "output": "2"}],
    },
)


def cases(*pairs: tuple[Any, Any]) -> str:
    return f"I think.\n```json\n{json.dumps([{'input': stdin, 'output': out} for stdin, out in pairs])}\n```"


SHARP = cases(("2 3", "5"), ("4 1", "5"))
BLUNT = cases(("2 0", "2"), ("4 0", "4"))
"""Valid, but the wrong program passes."""
INVALID = cases(("2 3", "5"), ("4 1", "6"))


@pytest.fixture(scope="module")
async def ready() -> AsyncIterator[tuple[SolveAndTest, SolveAndTest, RewardScorer]]:
    """Two workflows, the second without knowledge of the truth, and the reward; all with one sandbox."""
    built = [
        workflows.build({"kind": "solve_and_test", "sandbox": SANDBOX, "knows_truth": knows_truth})
        for knows_truth in (True, False)
    ]
    reward: Any = rewards.build({"kind": "code_tests", "sandbox": SANDBOX})
    knowing, plain = (workflow for workflow in built if isinstance(workflow, SolveAndTest))
    parts = (knowing, plain, reward)
    for part in parts:
        await part.start()
    yield knowing, plain, RewardScorer(reward)
    for part in parts:
        await part.close()


async def episode(
    workflow: SolveAndTest, scorer: RewardScorer, attempts: Sequence[str], tests: str, prompt: Prompt = PROMPT
) -> tuple[list[tuple[str, float, int | None]], FakePolicy, FakePolicy]:
    coder, tester = FakePolicy(*attempts), FakePolicy(tests)
    trajectories: Sequence[Trajectory] = await workflow.run(
        make.task(prompt_given=prompt), {CODER: coder, TESTER: tester}, scorer
    )
    return [(trajectory.role, trajectory.reward, trajectory.parent) for trajectory in trajectories], coder, tester


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("attempts", "tests", "tester_reward", "retry_reward"),
    [
        ([RIGHT], SHARP, 1.0, None),
        ([WRONG, RIGHT], SHARP, 1.0, 1.0),
        ([WRONG, WRONG], SHARP, 1.0, 0.0),
        ([RIGHT], BLUNT, 1.0, None),
        ([WRONG], BLUNT, 0.5, None),
        ([RIGHT], INVALID, 0.0, None),
        ([WRONG], INVALID, 0.0, None),
        (["I give up."], "no cases", 0.0, None),
        ([RIGHT], cases(("2 3", "5")), 0.0, None),
    ],
)
async def test_the_tester_is_rewarded_for_valid_cases_that_tell_right_from_wrong(
    ready: tuple[SolveAndTest, SolveAndTest, RewardScorer],
    attempts: list[str],
    tests: str,
    tester_reward: float,
    retry_reward: float | None,
) -> None:
    trajectories, coder, tester = await episode(ready[0], ready[2], attempts, tests)

    expected = [("coder", float(attempts[0] == RIGHT), None), ("tester", tester_reward, 0)]
    assert trajectories == [*expected, *([] if retry_reward is None else [("coder.retry", retry_reward, 1)])]
    assert "5 5 -> 10" not in tester.asked(0)
    if retry_reward is not None:
        assert "Case 1: FAIL\nInput:\n2 3\nExpected:\n5\nActual:\n-1" in coder.asked(1)


@pytest.mark.anyio
async def test_without_the_truth_every_failed_case_leads_to_a_retry(
    ready: tuple[SolveAndTest, SolveAndTest, RewardScorer],
) -> None:
    trajectories, _, _ = await episode(ready[1], ready[2], [RIGHT, RIGHT], INVALID)

    assert [role for role, _, _ in trajectories] == ["coder", "tester", "coder.retry"]


@pytest.mark.anyio
async def test_cases_of_functions_are_calls(ready: tuple[SolveAndTest, SolveAndTest, RewardScorer]) -> None:
    fields: dict[str, Json] = {
        **PROMPT.fields,
        "function": "add",
        "answer": "def add(a, b):\n    return a + b",
        "tests": [{"kind": "call", "function": "add", "arguments": [1, 2], "expected": [3]}],
    }
    code = "```python\ndef add(a, b):\n    return a {} b\n```"
    trajectories, coder, tester = await episode(
        ready[0],
        ready[2],
        [code.format("-"), code.format("+")],
        cases(([1, 2], 3), ([0, 0], 0)),
        Prompt(id=PromptId("add"), fields=fields),
    )

    assert trajectories == [("coder", 0.0, None), ("tester", 1.0, 0), ("coder.retry", 1.0, 1)]
    assert "`add`" in tester.asked(0)
    assert "Case 2: PASS" in coder.asked(1)


@pytest.mark.anyio
async def test_a_prompt_without_a_reference_fails_before_anything_is_generated(
    ready: tuple[SolveAndTest, SolveAndTest, RewardScorer],
) -> None:
    without = Prompt(id=PromptId("sum"), fields={**PROMPT.fields, "answer": ""})

    with raises_code(RolloutFailed, "rollout.no_reference") as failure:
        await episode(ready[0], ready[2], [], "", without)

    assert failure.value.boundary is Boundary.WORKFLOW
    assert not failure.value.boundary.is_retried
