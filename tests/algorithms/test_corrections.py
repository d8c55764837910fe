"""Corrections for mismatch against their formulas, in plain Python."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.losses import losses
from astraflow.contract.errors import InvalidInput
from tests.algorithms.data import Rows, Token, assert_close, batch_of, close, outcome, rows
from tests.errors import raises_code

Factor = Callable[[Token, list[Token]], float]


def log_rho(t: Token) -> float:
    return t.proximal - t.behaviour


def total(row: list[Token]) -> float:
    return sum(log_rho(t) for t in row)


def within(value: float, low: float, high: float) -> float:
    return value if low <= value <= high else 0.0


def fall(row: list[Token]) -> float:
    return sum(t.behaviour - t.logprob for t in row) / len(row)


CASES: list[tuple[dict[str, Any], Factor]] = [
    ({"kind": "tis"}, lambda t, _: min(math.exp(log_rho(t)), 2.0)),
    ({"kind": "tis", "cap": 1.5}, lambda t, _: min(math.exp(log_rho(t)), 1.5)),
    ({"kind": "tis", "level": "sequence"}, lambda _, row: min(math.exp(total(row)), 5.0)),
    ({"kind": "icepop"}, lambda t, _: within(math.exp(log_rho(t)), 0.5, 5.0)),
    ({"kind": "mis"}, lambda _, row: within(math.exp(total(row)), 0.0, 3.0)),
    ({"kind": "geometric_mask"}, lambda _, row: float(within(math.exp(total(row) / len(row)), 0.99, 1.01) > 0)),
    ({"kind": "opsm"}, lambda t, row: float(not (t.advantage < 0 and fall(row) > 0.5))),
]


@pytest.mark.long
@pytest.mark.parametrize(("spec", "factor"), CASES, ids=lambda case: str(case) if isinstance(case, dict) else "")
@given(token_rows=rows)
def test_a_correction_matches_its_formula(spec: dict[str, Any], factor: Factor, token_rows: Rows) -> None:
    near = [[t._replace(proximal=t.behaviour + (t.proximal + 2) / 8) for t in row] for row in token_rows]
    loss = losses.build({"kind": "reinforce", "anchor": "proximal", "corrections": (spec,)})

    result = outcome(loss, batch_of(near))

    factors = [factor(t, row) for row in near for t in row]
    ratios = [math.exp(t.logprob - t.proximal) for row in near for t in row]
    gains = [f * r * t.advantage for f, r, t in zip(factors, ratios, (t for row in near for t in row), strict=True)]
    assert close(result.loss, -sum(gains) / len(gains))
    assert_close(result.logprob_grad, [-gain / len(gains) for gain in gains])
    cap = (spec.get("cap") or (5.0 if spec.get("level") else 2.0)) if spec["kind"] == "tis" else math.inf
    assert close(result.metrics[f"{spec['kind']}_cut"], sum(f == 0 or f >= cap for f in factors))
    assert close(result.metrics[f"{spec['kind']}_mean"], sum(factors))


@pytest.mark.long
@given(rows)
def test_without_a_proximal_pass_the_current_policy_is_the_numerator(token_rows: Rows) -> None:
    own = batch_of([[t._replace(proximal=t.logprob) for t in row] for row in token_rows])
    expected, result = (
        outcome(losses.build({"kind": "ppo", "anchor": anchor, "corrections": ({"kind": "tis"},)}), own)
        for anchor in ("proximal", "current")
    )

    assert close(result.loss, expected.loss)
    assert_close(result.logprob_grad, expected.logprob_grad)


def test_masked_tokens_stay_in_the_denominator() -> None:
    cut, kept = Token(proximal=-1.0, behaviour=-4.0), Token()
    spec = {"kind": "ppo", "anchor": "proximal", "corrections": ({"kind": "icepop"},)}

    result = outcome(losses.build(spec), batch_of([[cut, kept]]))

    assert_close(result.logprob_grad, [0.0, -0.5])


def test_corrections_are_multiplied() -> None:
    weighted, rejected = Token(behaviour=-1.5), Token(behaviour=-1.5, advantage=-1.0, logprob=-3.0)
    spec = {"kind": "reinforce", "anchor": "proximal", "corrections": ({"kind": "tis"}, {"kind": "opsm"})}

    result = outcome(losses.build(spec), batch_of([[weighted], [rejected]]))

    assert_close(result.logprob_grad, [-math.exp(0.5) / 2, 0.0])


def test_a_product_of_many_ratios_stays_finite() -> None:
    row = [Token(proximal=0.0, behaviour=-40.0)] * 50
    for spec in ({"kind": "tis", "level": "sequence"}, {"kind": "mis"}, {"kind": "geometric_mask"}):
        loss = losses.build({"kind": "reinforce", "anchor": "proximal", "corrections": (spec,)})
        assert math.isfinite(outcome(loss, batch_of([row])).loss)


def test_tokens_without_recorded_logprob_are_left_out_of_the_row_mean() -> None:
    spec = {"kind": "geometric_mask", "low": 0.9, "high": 1.1}
    loss = losses.build({"kind": "reinforce", "anchor": "proximal", "corrections": (spec,)})
    inside = Token(proximal=-1.0, behaviour=-1.09)

    result = outcome(loss, batch_of([[inside, Token(behaviour=math.nan)]]))
    outside = outcome(loss, batch_of([[inside._replace(behaviour=-1.12), Token(behaviour=math.nan)]]))

    assert result.metrics["geometric_mask_cut"] == 0
    assert outside.metrics["geometric_mask_cut"] == 1


def test_an_empty_range_is_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "low 6.0"):
        corrections.build({"kind": "icepop", "low": 6.0})


def test_checking_a_loss_checks_the_options_of_its_corrections() -> None:
    with raises_code(InvalidInput, "config.invalid", "cap"):
        losses.check({"kind": "ppo", "corrections": ({"kind": "tis", "capp": 3},)})
