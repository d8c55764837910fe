"""The clipped loss against a slow, obvious loop, and against its own cuts."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.base import BatchFacts, LossTokens
from astraflow.contract.errors import InvalidInput

Token = tuple[float, float, float, int]
"""Logprob, recorded logprob, advantage, trajectory."""

logprob = st.floats(-5, 0, width=32)
tokens = st.lists(st.tuples(logprob, logprob, st.sampled_from([-2.0, 0.0, 0.5]), st.integers(0, 3)), min_size=1)


def as_tensors(found: list[Token], reference: Tensor | None = None) -> LossTokens:
    new, old, advantage, owner = zip(*found, strict=True)
    return LossTokens(
        logprobs=torch.tensor(new, requires_grad=True),
        behaviour=torch.tensor(old),
        advantages=torch.tensor(advantage),
        owners=torch.tensor(owner),
        reference=reference,
    )


def facts(found: list[Token]) -> BatchFacts:
    lengths = torch.bincount(torch.tensor([owner for *_, owner in found]), minlength=4)
    return BatchFacts(tokens=len(found), trajectories=int((lengths > 0).sum()), lengths=lengths)


def by_loop(found: list[Token], *, low: float, high: float, dual: float | None, aggregation: str) -> float:
    lengths = [sum(owner == other for *_, other in found) for owner in range(4)]
    present = sum(length > 0 for length in lengths)
    total = 0.0
    for new, old, advantage, owner in found:
        weights = {
            "token_mean": 1 / len(found),
            "sequence_mean": 1 / lengths[owner] / present,
            "fixed_length": 1 / 16 / present,
        }
        ratio = math.exp(new - old)
        gain = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
        if dual is not None and advantage < 0:
            gain = max(gain, dual * advantage)
        total -= weights[aggregation] * gain
    return total


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("dual", [None, 3.0])
@given(found=tokens)
def test_the_loss_is_that_of_a_loop(found: list[Token], dual: float | None, aggregation: str) -> None:
    options: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.3, "aggregation": aggregation, "fixed_length": 16}
    loss = losses.build({"kind": "ppo", "dual_clip": dual, **options})

    part = loss(as_tensors(found), facts(found))

    expected = by_loop(found, low=0.2, high=0.3, dual=dual, aggregation=aggregation)
    assert part.loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
@given(found=tokens, data=st.data())
def test_how_a_batch_is_cut_changes_neither_loss_nor_metrics(
    found: list[Token], aggregation: str, data: st.DataObject
) -> None:
    loss = losses.build({"kind": "ppo", "aggregation": aggregation, "fixed_length": 16})
    cut = data.draw(st.integers(0, len(found)))
    whole = loss(as_tensors(found), facts(found))

    parts = [loss(as_tensors(part), facts(found)) for part in (found[:cut], found[cut:]) if part]

    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-4, abs=1e-5)
    for name, value in whole.sums.items():
        assert sum(float(part.sums[name]) for part in parts) == pytest.approx(float(value), rel=1e-4, abs=1e-4)


def test_a_clipped_token_has_no_gradient_and_is_counted() -> None:
    found: list[Token] = [(-1.0, -2.0, 1.0, 0), (-1.0, -2.0, -1.0, 0), (-2.0, -1.0, -1.0, 1), (-2.0, -2.0, 1.0, 1)]
    given_tokens = as_tensors(found)

    part = losses.build({"kind": "ppo"})(given_tokens, facts(found))
    part.loss.backward()

    assert given_tokens.logprobs.grad is not None
    assert (given_tokens.logprobs.grad == 0).tolist() == [True, False, True, False]
    assert float(part.sums["clip_fraction"]) == 2


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    found: list[Token] = [(-1.0, -1.0, 2.0, 0), (-3.0, -3.0, -1.0, 1)]
    given_tokens = as_tensors(found)

    losses.build({"kind": "ppo"})(given_tokens, facts(found)).loss.backward()

    torch.testing.assert_close(given_tokens.logprobs.grad, torch.tensor([-1.0, 0.5]))


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 1 + 0.5)])
def test_the_penalty_is_that_of_its_estimator(estimator: str, expected: float) -> None:
    found: list[Token] = [(-1.0, -1.0, 0.0, 0)]
    loss = losses.build({"kind": "ppo", "kl_coefficient": 2.0, "kl_estimator": estimator})
    assert loss.needs_reference

    part = loss(as_tensors(found, reference=torch.tensor([-1.5])), facts(found))

    assert part.loss.item() == pytest.approx(2 * expected)
    assert float(part.sums["kl_reference"]) == pytest.approx(expected)


def test_ratios_that_would_overflow_stay_finite() -> None:
    found: list[Token] = [(0.0, -500.0, -1.0, 0)]

    assert math.isfinite(losses.build({"kind": "ppo"})(as_tensors(found), facts(found)).loss.item())


def test_a_fixed_length_must_be_given() -> None:
    with pytest.raises(InvalidInput, match="needs the option fixed_length"):
        losses.build({"kind": "ppo", "aggregation": "fixed_length"})
