"""Sampled trajectories are scored once more by another reward; their tokens stay."""

from dataclasses import replace

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.tracking.rescoring import rescoring
from tests.errors import raises_code
from tests.tracking.test_traces import sample


@pytest.mark.parametrize(
    ("spec", "answer", "is_truncated", "reward"),
    [
        ({"kind": "exact_match"}, "Yes.", False, 1.0),
        ({"kind": "exact_match"}, "Yes.", True, 0.0),
        ({"kind": "exact_match"}, "No.", False, 0.0),
        ({"kind": "f1"}, "yes", False, 1.0),
    ],
)
def test_the_last_answer_is_scored(spec: dict[str, str], answer: str, reward: float, *, is_truncated: bool) -> None:
    recorded = replace(sample(), reference_text=answer, is_truncated=is_truncated, reward=0.5, turn_rewards=(0.5,))
    with rescoring(spec) as rescored:
        result = rescored(recorded)
    assert result == replace(recorded, reward=reward, turn_rewards=())


def test_an_answer_with_a_secret_is_scored_as_it_was_written() -> None:
    plain, answer = sample(), "http://me:pw@host"
    recorded = replace(
        plain,
        completion_text=plain.completion_text.removesuffix("Yes.") + answer,
        text_ends=(*plain.text_ends[:-1], plain.text_ends[-2] + len(answer)),
        reference_text=answer,
        reward=0.5,
    )
    with rescoring({"kind": "exact_match"}) as rescored:
        assert rescored(recorded).reward == 1.0


def test_a_reward_that_asks_policies_is_refused() -> None:
    judge = {"kind": "llm_judge", "policy": "critic"}
    with raises_code(InvalidInput, "trajectories.reward_asks_policies", "llm_judge"), rescoring(judge):
        pass
