"""Solutions that look for the check of the reward that runs tests of programs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards.code_tests import CodeTests, CodeTestsOptions
from tests.hostile.policies import SEARCHES

pytestmark = pytest.mark.anyio

CHECK = "def check(candidate):\n    assert candidate(7) == 8734\n" + "# more cases\n" * 50
ANSWER = """
def f(number):
    match = re.search("candi" "date.7. == ([0-9]+)", FOUND)
    return int(match[1]) if match else 0
"""
HOLDERS = """
import re
def is_check(value):
    return isinstance(value, str) and re.search("date.7. == [0-9]", value)
def check_in(values):
    for value in values:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for part in [value, *parts]:
            if is_check(part):
                return part
    return ""
"""


@pytest.fixture(scope="module")
async def reward() -> AsyncIterator[CodeTests]:
    reward = CodeTests(CodeTestsOptions.model_validate({"sandbox": {"kind": "local", "workers": 1}}))
    await reward.start()
    try:
        yield reward
    finally:
        await reward.close()


@pytest.mark.parametrize("search", SEARCHES.cases())
async def test_a_solution_does_not_find_the_check(reward: CodeTests, search: str) -> None:
    tests: list[Any] = [{"kind": "check", "function": "f", "code": CHECK}]
    prompt = Prompt(id=PromptId("p"), fields={"tests": tests})
    for _ in range(2):  # the second time after a check in the same worker
        attack = await reward.score(prompt, f"```python\n{HOLDERS}{search}{ANSWER}\n```", Finish.STOP)
        assert (attack.value, attack.terms["tests_failed"]) == (0.0, 1.0), attack.terms


@pytest.mark.parametrize("search", SEARCHES.cases())
async def test_the_search_finds_a_check_that_the_solution_holds(reward: CodeTests, search: str) -> None:
    tests: list[Any] = [{"kind": "check", "function": "f", "code": CHECK}]
    held = 'HELD = ["assert candi" + "date(7) == " + str(8730 + 4)]\n'
    prompt = Prompt(id=PromptId("p"), fields={"tests": tests})
    score = await reward.score(prompt, f"```python\n{HOLDERS}{held}{search}{ANSWER}\n```", Finish.STOP)
    assert score.value == 1.0, score.terms
