"""Sentences of others, taken apart."""

import pytest

from web.present.sentences import grounded


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
def test_a_sentence_is_a_decision_and_its_ground(text: str, parts: tuple[str, str]) -> None:
    assert grounded(text) == parts


def test_a_long_sentence_is_looked_through_once() -> None:
    hostile = "no more held back by " + "x; the target is " * 20_000
    assert grounded(hostile)[0].startswith("The target is")
