"""Splits sentences into a decision and its cause."""

import pytest

from web.state.sentences import split_cause


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("2 to 3 nodes, because it waits.", ("2 to 3 nodes", "It waits.")),
        (
            "no more held back by a cap; the target is 4 nodes.",
            ("The target is 4 nodes", "No more held back by a cap."),
        ),
        (
            "no more held back by a; the target is 1; the target is 2",
            ("The target is 2", "No more held back by a; the target is 1."),
        ),
        ("something else", ("Something else", "")),
    ],
)
def test_a_sentence_is_split_into_decision_and_cause(text: str, parts: tuple[str, str]) -> None:
    assert split_cause(text) == parts


def test_a_long_sentence_is_split_in_linear_time() -> None:
    hostile = "no more held back by " + "x; the target is " * 20_000
    decision, cause = split_cause(hostile)
    assert len(decision) + len(cause) < len(hostile)
    assert decision.casefold() in hostile
