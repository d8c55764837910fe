"""Answers equal their other spellings, and no near miss; whatever a policy writes, a comparison raises nothing."""

import json
import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.rewards.mathematics.comparison import is_equal
from astraflow.rewards.mathematics.votes import compare

DECIMALS = 6
ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "answer_pairs.json").read_text())
RULES = list(dict.fromkeys(row["rule"] for row in ROWS))


def same(gold: str, answer: str) -> bool:
    return is_equal(gold, answer, decimals=DECIMALS)


@pytest.mark.parametrize("rule", RULES)
def test_equal_answers_are_accepted_and_different_ones_are_not(rule: str) -> None:
    rows = [row for row in ROWS if row["rule"] == rule]
    equal = [(row["gold"], answer) for row in rows for answer in (row["gold"], *row["equal"])]
    different = [(row["gold"], answer) for row in rows for answer in row["different"]]
    assert [pair for pair in equal if not same(*pair)] == []
    assert [pair for pair in different if same(*pair)] == []


@pytest.mark.long
def test_correct_answers_of_other_rules_are_different() -> None:
    golds = [(row["rule"], row["gold"]) for row in ROWS]
    pairs = [(gold, other) for rule, gold in golds for other_rule, other in golds if rule != other_rule]
    assert [pair for pair in pairs if same(*pair)] == []


def fraction_spellings(value: Fraction) -> list[str]:
    over, under = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    return [
        f"{sign}\\frac{{{over}}}{{{under}}}",
        f"{sign}{over}/{under}",
        f"{sign}\\dfrac{{{over}}}{{{under}}}",
        f"\\frac{{{sign}{over * 3}}}{{{under * 3}}}",
        f"$ {sign}{over} \\div {under} $",
        f"x = {sign}\\tfrac{{{over}}}{{{under}}}",
        f"\\boxed{{{sign}{{{over} \\over {under}}}}}",
    ]


@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**6), st.integers(1, 9))
def test_a_rational_number_equals_its_spellings_and_no_neighbour(value: Fraction, step: int) -> None:
    spellings = fraction_spellings(value)
    assert all(same(gold, answer) for gold in spellings[:3] for answer in spellings)
    neighbour = value + Fraction(step, value.denominator * 10**7)
    assert not any(same(gold, answer) for gold in spellings[:2] for answer in fraction_spellings(neighbour)[:3])


def scientific_spellings(mantissa: str, exponent: int) -> list[str]:
    return [
        f"{mantissa}e{exponent}",
        f"{mantissa}E{exponent:+d}",
        f"{mantissa}\\times 10^{{{exponent}}}",
        f"{mantissa} \\cdot 10^{{{exponent}}}",
        f"{mantissa}*10^{{{exponent}}}",
        f"{mantissa}\\times10^{{{exponent}}}\\text{{ m}}",
        f"{mantissa}0\\times 10^{{{exponent}}}",
    ]


@given(st.integers(10, 99), st.integers(-40, 40).filter(bool), st.integers(1, 5))
def test_a_number_in_scientific_notation_equals_its_spellings_and_no_neighbour(
    digits: int, exponent: int, step: int
) -> None:
    mantissa = f"{digits // 10}.{digits % 10}"
    spellings = scientific_spellings(mantissa, exponent)
    assert all(same(spellings[0], answer) for answer in spellings)
    others = [
        f"{mantissa}e{exponent + step}",
        f"{mantissa}e{exponent - step}",
        f"{mantissa}e{-exponent}",
        f"-{mantissa}e{exponent}",
        f"{digits // 10 + step}.{digits % 10}e{exponent}",
        "0",
        f"{mantissa}e \\cdot {abs(exponent)}",
        f"{mantissa}e - {abs(exponent)}",
    ]
    assert [answer for answer in others if same(spellings[0], answer)] == []


@given(st.integers(1, 999), st.integers(0, 999), st.integers(0, 999))
def test_separators_of_thousands_change_no_number(first: int, second: int, third: int) -> None:
    plain = f"{first}{second:03d}{third:03d}"
    groups = (str(first), f"{second:03d}", f"{third:03d}")
    assert all(same(plain, mark.join(groups)) for mark in (",", "{,}", "\\,", ",\\!", " "))
    assert not same(plain, f"{first}{second:03d}")


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_items_of_a_list_have_no_order_and_those_of_a_tuple_have_one(items: list[int], chance: random.Random) -> None:
    shuffled = chance.sample(items, len(items))
    assert same(", ".join(map(str, items)), ",".join(map(str, shuffled)))
    assert same("\\{" + ",".join(map(str, items)) + "\\}", "\\{" + ", ".join(map(str, shuffled)) + "\\}")
    assert same(f"({','.join(map(str, items))})", f"({', '.join(map(str, shuffled))})") == (items == shuffled)
    assert not same(", ".join(map(str, items)), ",".join(map(str, shuffled[1:])))


def polynomial(coefficients: list[int]) -> str:
    return "+".join(f"({value})x^{{{power}}}" for power, value in enumerate(coefficients))


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=4), st.lists(st.integers(-9, 9), min_size=2, max_size=4))
def test_a_product_of_polynomials_equals_its_expansion_and_no_other(left: list[int], right: list[int]) -> None:
    product = [0] * (len(left) + len(right) - 1)
    for power, value in enumerate(left):
        for other_power, other in enumerate(right):
            product[power + other_power] += value * other
    assert same(f"({polynomial(left)})({polynomial(right)})", polynomial(product))
    product[0] += 1
    assert not same(f"({polynomial(left)})({polynomial(right)})", polynomial(product))


TEXTS = st.text(
    st.sampled_from("0123456789.,:;+-*/^_=<>|!'()[]{}\\$% xyzniefABCR\u221a\u03c0\u00b0\u00bd\u5143"), max_size=60
)
PIECES = (
    "\\frac,\\sqrt,\\text{,\\left(,\\right),\\{,\\},{,},(,),[,],1,2,10,x,n,+,-,^,_,=,<,\\le,\\cup,\\infty,\\pm,!,\\binom,or,and"
    ",\\sum_{k=1}^{9},\\begin{pmatrix},\\end{pmatrix},&,\\\\,\\sin,\\log_,\\mathbf{i},\\overline{3},0.,\\pmod,\\equiv,e,i,|,:,cm"
    ",\\%,^\\circ,',\\ldots,\\setminus,\\mathbb{R},\\begin{cases},\\end{cases},\\mid"
)
PARTS = st.lists(st.sampled_from([",", *PIECES.split(",")]), max_size=25).map(" ".join)


@given(st.one_of(TEXTS, PARTS), st.one_of(TEXTS, PARTS))
@settings(max_examples=150)
def test_a_comparison_raises_nothing_and_a_text_equals_itself(gold: str, answer: str) -> None:
    reply = compare({"gold": gold, "answer": answer, "decimals": DECIMALS})
    assert isinstance(reply["is_equal"], bool)
    assert same(gold, gold)


@pytest.mark.long
@given(st.one_of(TEXTS, PARTS), st.one_of(TEXTS, PARTS))
@settings(max_examples=5000)
def test_many_comparisons_raise_nothing(gold: str, answer: str) -> None:
    assert isinstance(compare({"gold": gold, "answer": answer, "decimals": DECIMALS})["is_equal"], bool)


@pytest.mark.long
@given(st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**9), st.integers(1, 10**6))
@settings(max_examples=3000)
def test_many_rational_numbers_equal_their_spellings_and_no_neighbour(value: Fraction, step: int) -> None:
    spellings = fraction_spellings(value)
    assert all(same(spellings[0], answer) for answer in spellings)
    neighbour = value + Fraction(step, value.denominator * 10**9)
    assert not any(same(spellings[0], answer) for answer in fraction_spellings(neighbour))


@pytest.mark.long
@given(st.decimals(min_value=-(10**6), max_value=10**6, places=4), st.sampled_from((3, 4)))
@settings(max_examples=3000)
def test_many_decimal_numbers_equal_their_fractions_and_no_rounded_ones(value: Fraction, places: int) -> None:
    text = f"{value:f}"
    exact = Fraction(text)
    assert same(text, f"\\frac{{{exact.numerator}}}{{{exact.denominator}}}")
    assert same(f"{exact.numerator}/{exact.denominator}", text)
    rounded = f"{value:.{places - 1}f}"
    assert same(text, rounded) == (Fraction(rounded) == exact)
    assert not same(text, f"{float(exact) + math.copysign(1e-4, float(exact)):.4f}")
