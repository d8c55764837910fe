"""Divergence of the policy from a teacher over the teacher's most likely tokens, whose rest counts as one token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.algorithms.tokens import TokenData, TokenScores
from astraflow.contract.errors import InvalidInput

_MIN_TAIL = 1e-6
"""Smallest probability of the tail in a logarithm: below it, a float32 sum of probabilities says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherGap:
    """Result for the tokens of a micro-batch. All are `[tokens]`, and 0 where the teacher scored nothing."""

    divergence: Tensor
    """Nats, with gradient."""
    head_mass: Tensor
    """Probability of the teacher's most likely tokens under the teacher."""
    is_missing: Tensor
    """bool: the teacher scored nothing."""


def teacher_gap(scores: TokenScores, tokens: TokenData, *, mixture: float) -> TeacherGap:
    """Returns the divergence of each token. mixture: as in `head_divergence`."""
    teacher = tokens.teacher_top_logprobs
    if scores.top_logprobs is None or teacher is None:
        raise InvalidInput(
            "cannot compare the policy with a teacher: the batch has no most likely tokens of it; set teachers, or "
            "teacher_coefficient = 0",
            code="algorithm.no_teacher_tokens",
        )
    policy = scores.top_logprobs[:, scores.top_logprobs.shape[1] - teacher.shape[1] :]
    is_missing = ~teacher.isfinite().any(-1)
    divergence = head_divergence(policy, teacher, mixture=mixture)
    return TeacherGap(
        divergence=divergence.where(~is_missing, 0.0), head_mass=teacher.exp().sum(-1), is_missing=is_missing
    )


def head_divergence(policy: Tensor, teacher: Tensor, *, mixture: float) -> Tensor:
    """Returns the divergence of distributions over the same k tokens and the rest of the vocabulary as one more:
    `[tokens]`. At most that over the whole vocabulary, and equal to it when k is the vocabulary.

    policy, teacher: logprobs `[tokens, k]`; the teacher's are -inf where there is no token.
    mixture: 0: KL(teacher || policy), "forward"; 1: KL(policy || teacher), "reverse"; between: the generalized
    Jensen-Shannon divergence b KL(teacher || m) + (1 - b) KL(policy || m) with m = b teacher + (1 - b) policy.
    Source: GKD, arXiv:2306.13649.

    >>> whole = torch.tensor([[0.25, 0.75]]).log()
    >>> head_divergence(whole, torch.tensor([[0.5, 0.5]]).log(), mixture=0)
    tensor([0.1438])
    """
    is_token = teacher.isfinite()
    p, log_p = _with_tail(policy, is_token)
    t, log_t = _with_tail(teacher, is_token)
    if mixture == 0:
        return (t * (log_t - log_p)).sum(-1)
    if mixture == 1:
        return (p * (log_p - log_t)).sum(-1)
    weight = torch.tensor(mixture, dtype=log_p.dtype, device=log_p.device)
    log_m = torch.logaddexp(log_t + weight.log(), log_p + (1 - weight).log())
    return (weight * t * (log_t - log_m) + (1 - weight) * p * (log_p - log_m)).sum(-1)


def _with_tail(logprobs: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor]:
    """Returns probabilities and their logarithms, `[tokens, k + 1]`: of the tokens, and of the rest."""
    logs = logprobs.where(is_token, 0.0)
    probabilities = logs.exp().where(is_token, 0.0)
    tail = (1 - probabilities.sum(-1, keepdim=True)).clamp(min=0)
    return torch.cat([probabilities, tail], -1), torch.cat([logs, tail.clamp(min=_MIN_TAIL).log()], -1)
