"""Answers of the dataset as trajectories: context, then the answer with its stop token."""

from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId, Version
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.models import build_tokenizer
from astraflow.workflows import workflows
from astraflow.workflows.dataset_answers import DatasetAnswers
from tests import make
from tests.errors import raises_code

TOKENIZER = build_tokenizer({"kind": "tiny"})
PROMPT = Prompt(id=PromptId("p:1"), fields={"question": "reverse ab", "answer": "ba", "worse": "ab", "number": 7})


def workflow(**options: Any) -> DatasetAnswers:
    built = workflows.build({"kind": "dataset_answers", **options})
    assert isinstance(built, DatasetAnswers)
    return built


def test_the_answer_is_the_model_written_part_and_ends_with_the_stop_token() -> None:
    trajectory = workflow().trajectory(PROMPT, 0, TOKENIZER, Version(3))

    context = TOKENIZER.encode_chat([{"role": "user", "content": "reverse ab"}])
    answer = [*TOKENIZER.encode("ba"), TOKENIZER.stop_tokens[0]]
    np.testing.assert_array_equal(trajectory.tokens, [*context, *answer])
    assert trajectory.spans == (
        Span(author=Author.CONTEXT, length=len(context)),
        Span(author=Author.MODEL, length=len(answer), version=Version(3)),
    )
    assert (trajectory.reward, trajectory.answer, trajectory.completion_text) == (1.0, "ba", "ba")


def test_the_messages_before_the_question_are_context() -> None:
    prompt = Prompt(id=PromptId("p:3"), fields={"history": ["a", "b"], "question": "c", "answer": "d"})

    trajectory = workflow(system="s").trajectory(prompt, 0, TOKENIZER, Version(0))

    turns = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    context = TOKENIZER.encode_chat([{"role": role, "content": text} for role, text in turns])
    np.testing.assert_array_equal(trajectory.tokens[: len(context)], context)
    assert trajectory.completion_text == "d"


def test_a_rejected_answer_is_the_second_member() -> None:
    pair = workflow(rejected_field="worse")

    trajectory = [pair.trajectory(PROMPT, member, TOKENIZER, Version(0)) for member in range(pair.group_size)]

    assert [(member_trajectory.answer, member_trajectory.reward) for member_trajectory in trajectory] == [
        ("ba", 1.0),
        ("ab", 0.0),
    ]


def test_a_number_is_an_answer() -> None:
    assert workflow(rejected_field="number").trajectory(PROMPT, 1, TOKENIZER, Version(0)).answer == "7"


@pytest.mark.parametrize("fields", [{"question": "a", "answer": ""}, {"question": "a", "answer": None}])
def test_a_prompt_without_an_answer_is_refused(fields: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "workflow.no_answer"):
        workflow().trajectory(Prompt(id=PromptId("p:2"), fields=fields), 0, TOKENIZER, Version(0))


@pytest.mark.anyio
async def test_a_node_cannot_run_it() -> None:
    with raises_code(InvalidInput, "workflow.no_rollout"):
        await workflow().run(make.task(), {}, None)  # type: ignore[arg-type]  # not reached
