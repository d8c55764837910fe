"""Every built-in reward conforms with the interface, and the check finds rewards that do not."""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from astraflow.conformance.rewards import check_reward
from astraflow.contract.plugins import broken_promises
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.rewards import rewards
from astraflow.rewards.base import Reward
from astraflow.testing.plugins import RewardSuite
from tests import make
from tests.fakes.judge_server import JudgeServer

SPECS: dict[str, dict[str, Any]] = {
    "exact_match": {"kind": "exact_match"},
    "f1": {"kind": "f1", "tag": "answer"},
    "format": {"kind": "format", "pattern": "answer", "balanced_tags": ["answer"], "required_tags": ["answer"]},
    "math_answer": {"kind": "math_answer", "limit_s": 3.0, "workers": 1},
    "overlong": {"kind": "overlong", "max_tokens": 20, "buffer_tokens": 10},
    "reasoning_gym": {"kind": "reasoning_gym", "tag": "answer", "sandbox": {"kind": "local", "workers": 1}},
    "rubric": {
        "kind": "rubric",
        "terms": {
            "answer": {"reward": {"kind": "f1"}, "weight": 2.0},
            "length": {"reward": {"kind": "overlong", "max_tokens": 20, "buffer_tokens": 10}},
            "form": {"reward": {"kind": "format", "balanced_tags": ["answer"]}, "multiplies": True},
        },
    },
}


def prompt_for(kind: str) -> Prompt:
    if kind == "reasoning_gym":
        return datasets.build({"kind": "reasoning_gym", "generators": {"chain_sum": {}}}, 1).prompt(0)
    return make.prompt()


@pytest.mark.parametrize("kind", SPECS)
class TestBuiltInRewards(RewardSuite):
    @pytest.fixture
    def reward(self, kind: str) -> Reward:
        return rewards.build(SPECS[kind])

    @pytest.fixture
    def prompt(self, kind: str) -> Prompt:
        return prompt_for(kind)

    @pytest.fixture
    def completions(self, prompt: Prompt) -> Sequence[str]:
        answer = prompt.fields["answer"]
        return [f"<answer>{answer}</answer>", f"\\boxed{{{answer}}}", "<answer>no", str(answer)]


class TestLlmJudge(RewardSuite):
    @pytest.fixture
    async def judge(self) -> AsyncIterator[JudgeServer]:
        async with JudgeServer(lambda prompt: f"Fine.\nSCORE: {len(prompt) % 10}").serving() as server:
            yield server

    @pytest.fixture
    def reward(self, judge: JudgeServer) -> Reward:
        return rewards.build({"kind": "llm_judge", "base_url": judge.url, "model": "judge"})

    @pytest.fixture
    def prompt(self) -> Prompt:
        return make.prompt()

    @pytest.fixture
    def completions(self) -> Sequence[str]:
        return ["one", "another one"]


def test_every_built_in_reward_is_checked() -> None:
    others = ("code_tests",)  # needs a sandbox, and has its own tests
    built_in = {kind for kind in rewards.kinds() if kind not in others and not kind.startswith("test_")}
    assert built_in <= {*SPECS, "llm_judge"}


class Broken:
    """A reward with one defect of each kind."""

    def __init__(self) -> None:
        self.calls = 0

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
        self.calls += 1
        if not completion:
            raise ValueError("no text")
        if completion == "nan":
            return math.nan
        return float(self.calls) if completion == "counts" else 1.0


@pytest.mark.anyio
@pytest.mark.parametrize(("completion", "cause"), [("counts", "scored"), ("nan", "not finite"), ("fine", "ValueError")])
async def test_the_check_finds_a_defect(completion: str, cause: str) -> None:
    problems = broken_promises(await check_reward(Broken(), make.prompt(), [completion, "other"]))
    assert any(cause in problem for problem in problems)
