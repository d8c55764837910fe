import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish
from astraflow.rewards import rewards
from astraflow.rewards.base import Score
from tests import make


@pytest.mark.parametrize(
    ("completion", "finish", "score"),
    [
        ("dcba", Finish.STOP, 1.0),
        ("dcba", Finish.LENGTH, 0.0),
        ("dcba ", Finish.STOP, 0.0),
        ("", Finish.STOP, 0.0),
    ],
)
def test_truncated_answers_score_zero(completion: str, finish: Finish, score: float) -> None:
    """A truncated completion has no answer, even if its text contains one."""
    answer = completion if finish is Finish.STOP else ""
    reward_score = rewards.build({"kind": "exact_match"}).score(make.prompt(), completion, finish)
    assert reward_score == Score(value=score, answer=answer)


def test_a_prompt_without_an_answer_is_refused() -> None:
    reward = rewards.build({"kind": "exact_match", "answer_field": "solution"})

    with pytest.raises(InvalidInput) as caught:
        reward.score(make.prompt(), "dcba", Finish.STOP)
    assert caught.value.code == "reward.no_answer_field"
