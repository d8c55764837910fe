"""Losses of the Tinker API equal their formulas in float64, and so do their gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from astraflow.contract.errors import InvalidInput
from astraflow.tinker.losses import LOSSES, NOT_SERVED, find_loss
from tests.errors import raises_code

RNG = np.random.default_rng(0)
LOGPROBS = RNG.normal(-2.0, 1.0, (6, 2))
SAMPLED = LOGPROBS + RNG.normal(0.0, 1.0, LOGPROBS.shape)
ADVANTAGES = RNG.normal(0.0, 1.0, LOGPROBS.shape)


def ppo(logprob: float, sampled: float, advantage: float) -> float:
    ratio = np.exp(logprob - sampled)
    return float(-min(ratio * advantage, min(max(ratio, 0.7), 1.2) * advantage))


FORMULAS: dict[str, Callable[[float, float, float], float]] = {
    "cross_entropy": lambda logprob, _sampled, weight: -weight * logprob,
    "importance_sampling": lambda logprob, sampled, advantage: -np.exp(logprob - sampled) * advantage,
    "ppo": ppo,
    "dro": lambda logprob, sampled, advantage: -(logprob * advantage - 0.5 * 0.3 * (logprob - sampled) ** 2),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_loss_and_its_gradient_equal_the_formula(name: str) -> None:
    settings = {"ppo": {"clip_low_threshold": 0.7}, "dro": {"beta": 0.3}}.get(name, {})
    loss, formula = LOSSES[name], FORMULAS[name]
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    inputs = {key: torch.tensor(SAMPLED if key == "logprobs" else ADVANTAGES) for key in loss.inputs}
    value = loss.value(logprobs, inputs, {**loss.settings, **settings})
    value.sum().backward()
    gap = 1e-6
    for position in np.ndindex(LOGPROBS.shape):
        at = tuple(float(values[position]) for values in (LOGPROBS, SAMPLED, ADVANTAGES))
        slope = (formula(at[0] + gap, at[1], at[2]) - formula(at[0] - gap, at[1], at[2])) / (2 * gap)
        assert value[position].item() == pytest.approx(formula(at[0], at[1], at[2]), abs=1e-12)
        assert logprobs.grad is not None
        assert logprobs.grad[position].item() == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("settings", [{}, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}])
def test_cispo_has_the_gradient_of_the_likelihood_with_a_clipped_weight(settings: dict[str, float]) -> None:
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    inputs = {"logprobs": torch.tensor(SAMPLED), "advantages": torch.tensor(ADVANTAGES)}
    LOSSES["cispo"].value(logprobs, inputs, {**LOSSES["cispo"].settings, **settings}).sum().backward()
    assert logprobs.grad is not None
    low, high = (0.8, 1.2) if settings else (0.0, 4.0)
    expected = -np.clip(np.exp(LOGPROBS - SAMPLED), low, high) * ADVANTAGES
    np.testing.assert_allclose(logprobs.grad.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", [*NOT_SERVED, "cross_entropi"])
def test_a_loss_that_is_not_served_is_refused_by_its_name(name: str) -> None:
    with raises_code(InvalidInput, "tinker.loss_not_served") as refused:
        find_loss(name)
    assert f"loss_fn {name!r}" in str(refused.value)
