"""Equal answers in other spellings are one vote, different ones are not."""

import pytest

from astraflow.rewards.mathematics.votes import vote


@pytest.mark.parametrize(
    "spellings",
    [
        ("0.5", "\\frac12", "1/2", ".5", "\\frac{2}{4}", "x=\\frac{1}{2}"),
        ("\\sqrt8", "2\\sqrt2", "2 \\cdot 2^{1/2}"),
        ("x+1", "1+x", "\\frac{2x+2}{2}"),
        ("\\{1,3\\}", "3, 1", "x=1 \\text{ or } x=3"),
        ("(1,2.0)", "(1, \\frac{4}{2})"),
        ("x<2", "(-\\infty,2)", "2>x"),
        ("\\text{Monday}", "monday"),
        ("1000", "1,000", "10^3"),
    ],
)
def test_equal_answers_are_one_vote(spellings: tuple[str, ...]) -> None:
    assert len({vote(text) for text in spellings}) == 1


@pytest.mark.parametrize(
    "answers",
    [
        ("0.5", "0.6", "5", "\\sqrt{0.5}"),
        ("x+1", "x-1", "x", "y+1"),
        ("(1,2)", "(2,1)", "1,3", "[1,2]"),
        ("x<2", "x\\le2", "x>2"),
        ("5\\text{ cm}", "5\\text{ m}", "6\\text{ cm}"),
        ("\\text{Monday}", "\\text{Tuesday}", "\\text{not Monday}"),
        ("1,2,\\ldots", "2,1,\\ldots", "1,2"),
    ],
)
def test_different_answers_are_different_votes(answers: tuple[str, ...]) -> None:
    assert len({vote(text) for text in answers}) == len(answers)


def test_an_answer_without_a_value_votes_by_its_text() -> None:
    assert vote("9^{9^{9^{9}}}") == vote(" 9^{9^{9^9}} ") != vote("8^{9^{9^{9}}}")
