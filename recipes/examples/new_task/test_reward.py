"""Tests of the reward of my-task: python -m pytest in this folder."""

import json
from pathlib import Path

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.rewards.base import Score
from astraflow.runtime.plugins import import_plugins

FOLDER = Path(__file__).parent
import_plugins(str(FOLDER / "reward.py"))
REWARD = rewards.build({"kind": "my_task"})


def value(completion: str, finish: Finish = Finish.STOP) -> float:
    prompt = Prompt(id=PromptId("1"), fields={"question": "red fox =", "answer": "rf"})
    score = REWARD.score(prompt, completion, finish)
    assert isinstance(score, Score)
    return score.value


def test_the_right_answer_has_the_highest_score() -> None:
    assert value("rf") == 1


def test_a_wrong_answer_scores_less_the_less_of_it_is_right() -> None:
    assert 1 > value("rx") > value("xx") == 0


def test_a_cut_answer_scores_less() -> None:
    assert value("rf", Finish.LENGTH) < value("rf")


def test_every_line_of_the_questions_has_a_question_and_an_answer() -> None:
    lines = [json.loads(line) for line in (FOLDER / "questions.jsonl").read_text().splitlines()]
    assert all(line["question"] and line["answer"] for line in lines)
