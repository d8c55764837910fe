"""The answer of a completion is in its last box, or what the end of a text states."""

import pytest

from astraflow.rewards.base import outside_thoughts
from astraflow.rewards.mathematics.extraction import last_boxed, unboxed


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{1}", "1"),
        ("\\boxed{1} \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed {3}", "3"),
        ("\\boxed\n{3}", "3"),
        ("\\fbox{3}", "3"),
        ("\\boxed 8, since", "8"),
        ("\\boxed 1,234.5.", "1,234.5"),
        ("\\boxed{4}. I write \\boxed", "4"),
        ("\\boxed{\\boxed{6}}", "6"),
        ("\\boxed{1} \\boxed{2", None),
        ("\\boxed", None),
        ("\\boxedx{1}", None),
        ("1", None),
        ("\\boxed" * 100_000, None),
    ],
)
def test_the_last_box_is_the_answer(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 17.", "17"),
        ("The final answer is **17**.", "17"),
        ("Answer: \\frac{1}{2}", "\\frac{1}{2}"),
        ("The answer is $x=3$. I hope it is right.", "x=3"),
        ("The answer is 17, not 18.", "17"),
        ("The answer is 17. Check: 8+9 = 17, and 8+8 = 16, which is less.", "17"),
        ("The answer is -2.5.", "-2.5"),
        ("So there are 4! = 24", "4! = 24"),
        ("The probability is 50%.", "50%"),
        ("It follows that \\(x=3\\), so \\((3,4)\\).", "(3,4)"),
        ("42", "42"),
        ("I do not know.", "I do not know"),
        ("We have 41 and 42", ""),
        ("", ""),
    ],
)
def test_a_text_without_a_box_states_its_answer_at_its_end(text: str, answer: str) -> None:
    assert unboxed(text) == answer


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>\\boxed{1}</think>\\boxed{2}", "\\boxed{2}"),
        ("\\boxed{1}</think>\\boxed{2}", "\\boxed{2}"),
        ("<think>\\boxed{1}", ""),
        ("\\boxed{2}<think>\\boxed{1}", "\\boxed{2}"),
        ("<think>a</think><think>b</think>c", "c"),
        ("no thought", "no thought"),
    ],
)
def test_a_thought_is_no_part_of_the_answer(text: str, rest: str) -> None:
    assert outside_thoughts(text) == rest
