"""Divergence from a teacher: that of whole distributions when its head is the vocabulary, below it otherwise."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from astraflow.algorithms.distillation import head_divergence, teacher_gap
from astraflow.algorithms.losses import losses
from astraflow.algorithms.tokens import SingleRank, TokenScores
from astraflow.contract.errors import InvalidInput
from tests.algorithms.data import Token, batch_of
from tests.errors import raises_code

VOCABULARY = 9
MIXTURES = [0.0, 1.0, 0.5, 0.1]


def distributions(seed: int, spread: float) -> tuple[Tensor, Tensor]:
    """Returns the logits of a policy and the logprobs of a teacher, `[3, VOCABULARY]`."""
    draws = torch.Generator().manual_seed(seed)
    policy, teacher = (torch.randn(3, VOCABULARY, generator=draws, dtype=torch.float64) * spread for _ in range(2))
    return policy.requires_grad_(), teacher.log_softmax(-1)


def whole_divergence(policy: Tensor, teacher: Tensor, mixture: float) -> Tensor:
    """Returns the divergence of logprobs over the whole vocabulary, by its definition."""
    p, t = policy.exp(), teacher.exp()
    if mixture in (0.0, 1.0):
        first, second = (t, p) if mixture == 0 else (p, t)
        return (first * (first / second).log()).sum(-1)
    middle = mixture * t + (1 - mixture) * p
    return mixture * (t * (t / middle).log()).sum(-1) + (1 - mixture) * (p * (p / middle).log()).sum(-1)


def head(policy: Tensor, teacher: Tensor, count: int) -> tuple[Tensor, Tensor]:
    top = teacher.topk(count, -1)
    return policy.log_softmax(-1).gather(-1, top.indices), top.values


@pytest.mark.parametrize("mixture", MIXTURES)
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.1, 1.0, 3.0]))
def test_a_head_of_the_whole_vocabulary_gives_value_and_gradient_of_the_definition(
    mixture: float, seed: int, spread: float
) -> None:
    logits, teacher = distributions(seed, spread)
    divergence = head_divergence(*head(logits, teacher, VOCABULARY), mixture=mixture)
    expected = whole_divergence(logits.log_softmax(-1), teacher, mixture)
    torch.testing.assert_close(divergence, expected, rtol=1e-9, atol=1e-12)
    (gradient,) = torch.autograd.grad(divergence.sum(), logits, retain_graph=True)
    (of_definition,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(gradient, of_definition, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("mixture", MIXTURES)
@given(seed=st.integers(0, 10_000))
def test_more_tokens_of_the_teacher_never_make_the_divergence_smaller(mixture: float, seed: int) -> None:
    logits, teacher = distributions(seed, 2.0)
    values = [head_divergence(*head(logits, teacher, count), mixture=mixture) for count in range(1, VOCABULARY + 1)]
    for smaller, larger in pairwise(values):
        assert (smaller <= larger + 1e-9).all()
    assert (values[0] >= 0).all()


@pytest.mark.parametrize("mixture", MIXTURES)
def test_equal_distributions_have_no_divergence_and_no_gradient(mixture: float) -> None:
    logits, _ = distributions(1, 1.0)
    divergence = head_divergence(*head(logits, logits.detach().log_softmax(-1), 4), mixture=mixture)
    (gradient,) = torch.autograd.grad(divergence.sum(), logits)
    assert float(divergence.detach().abs().max()) < 1e-12
    assert float(gradient.abs().max()) < 1e-9


@pytest.mark.parametrize("mixture", MIXTURES)
def test_float32_scores_of_a_certain_teacher_and_a_certain_policy_stay_finite(mixture: float) -> None:
    teacher = torch.tensor([[0.0, -80.0, -torch.inf], [-1e-7, -16.0, -20.0]])
    policy = torch.tensor([[-30.0, 0.0, -90.0], [0.0, -40.0, -60.0]], requires_grad=True)
    divergence = head_divergence(policy, teacher, mixture=mixture)
    divergence.sum().backward()
    assert divergence.isfinite().all()
    assert policy.grad is not None
    assert policy.grad.isfinite().all()


def test_a_token_without_a_teacher_has_no_divergence() -> None:
    batch = batch_of([[Token(), Token()]])
    teacher = torch.tensor([[-0.4, -1.8], [-torch.inf, -torch.inf]], dtype=torch.float64)
    values = torch.tensor([[-0.5, -1.5], [-0.7, -1.2]], dtype=torch.float64, requires_grad=True)
    scores = TokenScores(logprobs=batch.logprobs, entropy=batch.entropy, top_logprobs=values)
    tokens = replace(batch.tokens, teacher_top_logprobs=teacher)

    loss = losses.build({"kind": "distillation"})
    state = loss.prepare(tokens, batch.statistics, SingleRank())
    result = loss(scores, tokens, batch.statistics, state)
    result.loss.backward()

    assert values.grad is not None
    assert (values.grad[0] != 0).all()
    assert (values.grad[1] == 0).all()
    assert float(result.loss.detach()) == pytest.approx(float(result.metric_sums["kl_teacher"]) / 2)
    assert float(result.metric_sums["teacher_head_mass"]) == pytest.approx(math.exp(-0.4) + math.exp(-1.8))


def test_a_batch_without_scores_of_a_teacher_is_refused() -> None:
    batch = batch_of([[Token()]])
    scores = TokenScores(logprobs=batch.logprobs, entropy=batch.entropy)
    with raises_code(InvalidInput, "algorithm.no_teacher_tokens"):
        teacher_gap(scores, batch.tokens, mixture=0)
