"""Advantages and gradient of a critic by the plainest loop; shares no code with the trainer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.rollouts.trajectories import Trajectory

GAMMA, LAMBDA = 0.97, 0.9

ALGORITHM: Mapping[str, Any] = {
    "advantages": (),
    "token_advantages": ({"kind": "gae", "gamma": GAMMA, "gae_lambda": LAMBDA},),
    "critic": {},
}
"""Options of an algorithm with these advantages."""


class PlainCritic:
    """Decoder of transformers and a head of one output; computes one row at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        """model: the policy's initial weights, which the critic changes."""
        size = model.config.hidden_size
        weight = next(model.parameters())
        drawn = torch.randn(1, size, generator=torch.Generator().manual_seed(0)) / (size + 1)
        self._decoder = model.model
        self._head = drawn.to(weight.dtype).requires_grad_()

    def values(self, row: Trajectory) -> Tensor:
        """Returns the value before each model-written token."""
        ids = torch.from_numpy(row.tokens.astype(np.int64))
        hidden = self._decoder(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        places = torch.from_numpy(np.flatnonzero(row.loss_mask()))
        values: Tensor = (hidden[places - 1] @ self._head.T)[:, 0]
        return values

    def advantages(self, row: Trajectory) -> list[float]:
        """Returns the advantage of each model-written token."""
        values = self.values(row).tolist()
        advantages: list[float] = []
        later = 0.0
        for index in reversed(range(len(values))):
            is_last = index == len(values) - 1
            target = row.reward if is_last else GAMMA * values[index + 1]
            later = target - values[index] + (0.0 if is_last else GAMMA * LAMBDA * later)
            advantages.insert(0, later)
        return advantages

    def gradients(self, rows: Sequence[Trajectory], token_weights: Sequence[float]) -> dict[str, Tensor]:
        """Returns the gradient of half the squared error by the name in a checkpoint.

        token_weights: weight of each token of a row.
        """
        for row, weight in zip(rows, token_weights, strict=True):
            values = self.values(row)
            returns = torch.tensor(self.advantages(row), dtype=values.dtype) + values.detach()
            (weight * (values - returns).square().sum() / 2).backward()
        gradients = {f"critic/model.{name}": weight.grad for name, weight in self._decoder.named_parameters()}
        gradients["critic/lm_head.weight"] = self._head.grad
        return {name: gradient for name, gradient in gradients.items() if gradient is not None}
