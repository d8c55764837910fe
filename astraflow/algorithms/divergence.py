"""Estimates of the divergence between two policies from the logprobs of sampled tokens."""

from torch import Tensor

from astraflow.algorithms.losses.options import KlEstimator

_MAX_LOG_RATIO = 20.0
"""Bound of log ratios before the exponential, which must not overflow; e^20 is outside every clip range."""
_MAX_K3 = 10.0
"""Bound of k3, so that one token of a collapsed policy does not dominate the batch. (verl)"""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Returns exp(log ratio) with the log ratio bounded by 20 in magnitude; no gradient beyond the bound."""
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


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
