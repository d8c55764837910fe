"""Estimates of the divergence between two policies from the logprobs of sampled tokens."""

import torch
from torch import Tensor

from astraflow.algorithms.losses.options import KlEstimator

_MAX_LOG_RATIO = 20.0
"""Bound of log ratios before the exponential, which must not overflow; e^20 is outside every clip range."""
_MAX_K3 = 10.0
"""Bound of k3, so that one token of a collapsed policy does not dominate the batch. (verl)"""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Returns exp(log ratio) with the log ratio bounded by 20 in magnitude; no gradient beyond the bound."""
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def corrected_divergence(log_ratio: Tensor, weights: Tensor) -> Tensor:
    """Returns the estimated divergence of the engine's samples with these weights from the trainer, per token.

    It is k3 with a weight of 1 and 0 with the ratio itself: r - w - w log(r / w), the divergence of masses that need
    not sum to 1; 0 for a token with a weight of 0, which is no sample. log_ratio: trainer over engine, `[tokens]`.

    >>> corrected_divergence(torch.zeros(3), torch.tensor([1.0, 0.0, 2.0]))
    tensor([0.0000, 0.0000, 0.3863])
    """
    left = bounded_exp(log_ratio) - weights - weights * log_ratio + torch.xlogy(weights, weights)
    return left.clamp(min=0).where(weights > 0, 0.0)


def kl(logprobs: Tensor, reference: Tensor, *, estimator: KlEstimator) -> Tensor:
    """Returns the estimated divergence from the reference, per token: `[tokens]`.

    Source: J. Schulman, "Approximating KL divergence"; `k3+`: verl.

    >>> import torch
    >>> kl(torch.tensor([-1.0]), torch.tensor([-1.0]), estimator="k3")
    tensor([0.])
    """
    log_ratio = (reference - logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    k2 = log_ratio.square() / 2
    k3 = (log_ratio.exp() - 1 - log_ratio).clamp(max=_MAX_K3)
    match estimator:
        case "k1":
            return -log_ratio
        case "k2":
            return k2
        case "k3":
            return k3
        case "k3+":
            return k2 + (k3 - k2).detach()
