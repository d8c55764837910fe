from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.spans import Author
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder, with_text

TOKENIZER = ByteTokenizer()


def generation(text: str, *spans: tuple[int, int], finish: Finish = Finish.STOP) -> Generation:
    tokens = TOKENIZER.encode(text)
    return Generation(
        tokens=tokens,
        logprobs=-np.arange(len(tokens), dtype=np.float32),
        spans=tuple(VersionSpan(version=Version(version), length=length) for version, length in spans),
        finish=finish,
    )


def test_spans_have_the_author_and_the_version_of_tokens() -> None:
    transcript = TrajectoryBuilder(PolicyId("solver"))

    transcript.add_context(TOKENIZER.encode("ask"))
    transcript.add_generation(generation("reply", (1, 2), (2, 3)))
    transcript.add_context(TOKENIZER.encode("more"))
    transcript.add_generation(generation("end", (2, 3), finish=Finish.LENGTH))
    trajectory = transcript.build(0.5, metrics={"turns": 2})

    assert TOKENIZER.decode(trajectory.tokens) == "askreplymoreend"
    assert [(span.author, span.length, span.version) for span in trajectory.spans] == [
        (Author.CONTEXT, 3, None),
        (Author.MODEL, 2, 1),
        (Author.MODEL, 3, 2),
        (Author.CONTEXT, 4, None),
        (Author.MODEL, 3, 2),
    ]
    assert trajectory.logprobs.tolist() == [0, -1, -2, -3, -4, 0, -1, -2]
    assert trajectory.is_truncated
    assert trajectory.oldest_version == 1
    assert (trajectory.reward, trajectory.metrics) == (0.5, {"turns": 2})


def test_the_accepted_share_of_all_drafts_is_a_metric() -> None:
    transcript = TrajectoryBuilder(PolicyId("solver"))
    for drafted, accepted in ((6, 3), (0, 0), (2, 1)):
        transcript.add_generation(replace(generation("reply", (1, 5)), drafted=drafted, accepted=accepted))

    assert transcript.build(1, metrics={"turns": 3}).metrics == {"turns": 3, "drafts_accepted": 0.5}


@pytest.mark.long
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 2)), max_size=12))
def test_any_sequence_of_parts_makes_a_consistent_trajectory(pieces: list[tuple[bool, int, int]]) -> None:
    transcript = TrajectoryBuilder(PolicyId("solver"))
    for is_model, length, version in pieces:
        if is_model:
            transcript.add_generation(generation("x" * length, *([(version, length)] if length else [])))
        else:
            transcript.add_context(TOKENIZER.encode("c" * length))

    trajectory = transcript.build(1.0)

    text = "".join(("x" if is_model else "c") * length for is_model, length, _ in pieces)
    assert TOKENIZER.decode(trajectory.tokens) == text
    assert trajectory.loss_mask().tolist() == [letter == "x" for letter in text]
    kinds = [(span.author, span.version) for span in trajectory.spans]
    assert all(left != right for left, right in pairwise(kinds))


def test_text_is_split_at_the_first_model_token() -> None:
    transcript = TrajectoryBuilder(PolicyId("solver"))
    transcript.add_context(TOKENIZER.encode_chat([{"role": "user", "content": "hi"}]))
    transcript.add_generation(generation("hello", (0, 5)))

    trajectory = with_text(transcript.build(1.0), TOKENIZER)

    assert trajectory.prompt_text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert trajectory.completion_text == "hello"
    assert trajectory.text_ends == (len(trajectory.prompt_text), len(trajectory.prompt_text) + 5)


def test_each_span_has_its_own_text_also_at_a_version_change() -> None:
    transcript = TrajectoryBuilder(PolicyId("solver"))
    transcript.add_context(TOKENIZER.encode("hi"))
    transcript.add_generation(generation("hello", (0, 2), (1, 3)))
    transcript.add_context(TOKENIZER.encode("tool"))
    transcript.add_generation(generation("bye", (1, 3)))

    trajectory = with_text(transcript.build(1.0), TOKENIZER)

    whole = trajectory.prompt_text + trajectory.completion_text
    pieces = [whole[begin:end] for begin, end in pairwise((0, *trajectory.text_ends))]
    assert pieces == ["hi", "he", "llo", "tool", "bye"]
    assert len(pieces) == len(trajectory.spans)


def test_a_trajectory_without_an_answer_has_only_a_prompt() -> None:
    transcript = TrajectoryBuilder(PolicyId("solver"))
    transcript.add_context(TOKENIZER.encode("hi"))

    trajectory = with_text(transcript.build(0.0), TOKENIZER)

    assert (trajectory.prompt_text, trajectory.completion_text, trajectory.oldest_version) == ("hi", "", None)
