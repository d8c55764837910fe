"""Full-precision weights behind the rounded ones, and the optimizer that moves them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWSettings:
    """Of AdamW (arXiv:1711.05101)."""

    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    """Not applied to vectors (norms, biases)."""
    warmup_steps: int
    """The learning rate grows to its value over that many steps."""
    max_grad_norm: float
    """Gradients are scaled down to this norm."""


class Masters:
    """float32 weights that the optimizer moves. The model computes with their values rounded to the published type.

    Steps of reinforcement learning are often smaller than half a bf16 step. Added to rounded weights they would be
    lost; here they add up until the rounded value changes. The gradient is taken at the rounded weights and applied to
    the masters (straight-through), so trainer and engines compute with the very same values.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settings: AdamWSettings, *, rounded_to: torch.dtype
    ) -> None:
        self.steps = 0
        self._settings = settings
        self._rounded_to = rounded_to
        self._parameters = dict(parameters)
        self._masters = {name: nn.Parameter(value.detach().float().clone()) for name, value in parameters.items()}
        self._optimizer = torch.optim.AdamW(
            self._groups(), lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon, fused=True
        )
        for master in self._masters.values():
            self._optimizer.state[master] = _first_moments(master)
        self._write_back()

    def collect(self) -> None:
        """Take the model's gradients over, adding them in float32; call after each backward."""
        for name, parameter in self._parameters.items():
            master, gradient = self._masters[name], parameter.grad
            if gradient is None:
                continue
            master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def step(self, *, is_sound: bool = True) -> float | None:
        """Move the masters by what was collected and round them into the model; the step counts either way.

        Returns the gradient's norm before clipping; None when it is not finite or the loss was not sound, and nothing
        was moved.
        """
        norm = torch.nn.utils.clip_grad_norm_(self._masters.values(), self._settings.max_grad_norm)
        is_moved = is_sound and bool(norm.isfinite())
        if is_moved:
            for group in self._optimizer.param_groups:
                group["lr"] = self.learning_rate
            self._optimizer.step()
            self._write_back()
        self._optimizer.zero_grad()
        self.steps += 1
        return float(norm) if is_moved else None

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        warmth = (self.steps + 1) / (self._settings.warmup_steps + 1)
        return self._settings.learning_rate * min(1.0, warmth)

    def weights(self) -> dict[str, Tensor]:
        """The float32 masters by name; not copied. What is published is their rounding."""
        return {name: master.detach() for name, master in self._masters.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that must be saved, by name; not copied."""
        named: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            moments = self._optimizer.state[master]
            named[f"weight/{name}"] = master.detach()
            named |= {f"{moment}/{name}": value for moment, value in moments.items()}
        return named

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Tensor], *, steps: int) -> None:
        """Take saved tensors over, whose names and shapes are those of `tensors`."""
        for name, value in self.tensors().items():
            value.copy_(saved[name])
        self.steps = steps
        self._write_back()

    def _groups(self) -> list[dict[str, object]]:
        matrices = [master for master in self._masters.values() if master.ndim > 1]
        vectors = [master for master in self._masters.values() if master.ndim <= 1]
        return [
            {"params": matrices, "weight_decay": self._settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]

    @torch.no_grad()
    def _write_back(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(self._masters[name].to(self._rounded_to))


def _first_moments(master: Tensor) -> dict[str, Tensor]:
    """AdamW's state before the first step; made here so that what is saved always has the same tensors."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=master.device),
        "exp_avg": torch.zeros_like(master),
        "exp_avg_sq": torch.zeros_like(master),
    }
