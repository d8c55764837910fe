"""Expressions of a policy are evaluated within bounds, whatever they say."""

import time

import pytest

from astraflow.rewards.mathematics.algebra.evaluation import Budget, Evaluator, Undefined
from astraflow.rewards.mathematics.algebra.parser import parse
from astraflow.rewards.mathematics.tokens import Unreadable, tokens_of
from astraflow.rewards.mathematics.votes import compare

HUGE = (
    "9^{9^{9^{9}}}",
    "(10^9)!",
    "100!!!!",
    "\\sum_{k=1}^{10^{12}} \\frac{1}{k^2}",
    "\\prod_{k=1}^{10^9} k",
    "\\tan(10^{10^9})",
    "\\exp(\\exp(\\exp(50)))",
    "\\binom{\\pi^{40}}{e^{50}}",
)
SLOW = (
    "\\sum_{x=1}^{1000} \\prod_{n=1}^{1000} \\log_{2}(\\exp(n x))",
    "\\sum_{k=1}^{1000} \\frac{3^{30000}}{7^{20000}+k}",
    "\\{" + ",".join(f"\\sum_{{k=1}}^{{900}}\\sin(k^{{{power}}})" for power in range(30)) + "\\}",
    "(" * 400 + "x" + ")" * 400,
    "\\sqrt{" * 150 + "2" + "}" * 150,
    "-" * 900 + "1",
    "x+" * 480 + "1",
    "1" * 990,
    "\\{" + ",".join(map(str, range(240))) + "\\}",
    "x^{" * 150 + "2" + "}" * 150,
)
LIMIT_S = 4.0
"""Processor time of a comparison, on a slow machine. Seconds."""


def value(text: str) -> object:
    return Evaluator(50, {}, Budget(), has_complex=False).value(parse(tokens_of(text)))


@pytest.mark.parametrize("text", HUGE)
def test_expressions_beyond_the_bounds_have_no_value(text: str) -> None:
    with pytest.raises((Undefined, Unreadable)):
        value(text)


@pytest.mark.parametrize(
    "text", ["\\frac10", "0^0", "\\ln 0", "\\tan\\frac{\\pi}{2}", "(-3)!", "\\infty-\\infty", "\\sqrt{-2}"]
)
def test_undefined_expressions_have_no_value(text: str) -> None:
    with pytest.raises(Undefined):
        value(text)


def test_a_sum_that_would_lose_a_term_has_no_value() -> None:
    with pytest.raises(Undefined):
        value("10^{10^8}+1")


@pytest.mark.parametrize("text", ["1e99999", "9" * 2000, "1e-99999"])
def test_a_number_that_is_too_long_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        tokens_of(text)


@pytest.mark.parametrize("text", (*HUGE, *SLOW))
def test_a_comparison_takes_bounded_processor_time(text: str) -> None:
    began = time.process_time()
    assert compare({"gold": "\\frac{x+1}{2}", "answer": text, "decimals": 6})["is_equal"] is False
    compare({"gold": text, "answer": text + "+0", "decimals": 6})
    assert time.process_time() - began <= LIMIT_S
