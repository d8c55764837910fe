"""Losses of a trajectory's tokens in plain autograd, with the defaults of their papers, for the reference of a step.

`logprobs` have a gradient, `recorded` are the engine's. The proximal policy is the policy before the step, so its
logprobs are `logprobs.detach()`.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

PlainLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`(logprobs, recorded, advantages) -> losses`, each `[tokens]`."""


def clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Returns the loss of PPO, equation 7."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def ppo(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    return clipped((logprobs - recorded).exp(), advantages, 0.2, 0.2)


def icepop(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    mismatch = (logprobs.detach() - recorded).exp()
    kept = mismatch * ((mismatch >= 0.5) & (mismatch <= 5))
    return kept * clipped((logprobs - logprobs.detach()).exp(), advantages, 0.2, 0.2)


def decoupled(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    weight = (logprobs.detach() - recorded).exp().clamp(max=5)
    return weight * clipped((logprobs - logprobs.detach()).exp(), advantages, 0.2, 0.2)


def gspo(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    ratio = (logprobs - logprobs.detach()).mean().exp()
    product = (logprobs.detach() - recorded).sum().exp()  # masked importance sampling
    return product * (product <= 3) * clipped(ratio, advantages, 3e-4, 4e-4)


def cispo(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    return -(logprobs.detach() - recorded).exp().clamp(max=5) * advantages * logprobs


def sapo(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    steepness = torch.where(advantages > 0, 1.0, 1.05)
    return -(steepness * ((logprobs - recorded).exp() - 1)).sigmoid() * 4 / steepness * advantages


def dppo(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    change = (logprobs.exp() - recorded.exp()).detach() * advantages.sign()
    gain = (logprobs - recorded).exp() * advantages * (change <= 0.2)
    return 1e-3 * (logprobs - recorded) ** 2 - gain


def reinforce(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    weight = (logprobs.detach() - recorded).exp().clamp(max=2)  # truncated importance sampling
    return -weight * advantages * (logprobs - logprobs.detach()).exp()


def sft(logprobs: Tensor, recorded: Tensor, advantages: Tensor) -> Tensor:
    return -logprobs


PLAIN_LOSSES: Mapping[str, tuple[Mapping[str, Any], PlainLoss]] = {
    "ppo": ({"kind": "ppo", "clip_low": 0.2, "clip_high": 0.2}, ppo),
    "icepop": ({"kind": "ppo", "anchor": "proximal", "corrections": ({"kind": "icepop"},)}, icepop),
    "decoupled_ppo": ({"kind": "decoupled_ppo"}, decoupled),
    "gspo, mis": ({"kind": "gspo", "corrections": ({"kind": "mis"},)}, gspo),
    "cispo": ({"kind": "cispo"}, cispo),
    "sapo": ({"kind": "sapo"}, sapo),
    "dppo": ({"kind": "dppo"}, dppo),
    "reinforce, tis": ({"kind": "reinforce", "anchor": "current", "corrections": ({"kind": "tis"},)}, reinforce),
    "sft": ({"kind": "sft"}, sft),
}
"""Name -> options of the trainer's loss, and the same loss in plain autograd."""
