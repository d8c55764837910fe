"""Form of the output head of a causal model: what it does to the products of its linear layer.

Trainer and local engine compute the head themselves, at the tokens that they need only.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

_FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
"""Names in configurations of a factor of the logits: Cohere, Falcon-H1, Muse."""
_DIVISORS = ("logits_scaling",)
"""Names of a divisor of the logits: Granite."""
_BOUNDS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names of a bound of the logits: Gemma, RecurrentGemma, xLSTM."""

_CHECKED_SIZE = 60.0
"""Largest product of the checked head: beyond the bounds of today's models, which small products do not show."""
_TOLERANCE = 1e-3
"""Largest accepted difference, as a share of the largest logit."""
_ROUNDED_TOLERANCE = 0.03
"""The same for element types of fewer bits than float32, in which transformers bounds the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadForm:
    """Logits as a function of the products of the linear layer: `bound * tanh(scale * product / bound)`."""

    scale: float = 1.0
    bound: float | None = None
    """Limit of the absolute value of a logit; None for none."""

    @classmethod
    def of(cls, config: PretrainedConfig) -> "HeadForm":
        """Returns the form that a model's configuration states."""
        text: Any = config.get_text_config()
        scale = 1.0
        for name in _FACTORS:
            scale *= 1.0 if (factor := getattr(text, name, None)) is None else factor
        for name in _DIVISORS:
            scale /= 1.0 if (divisor := getattr(text, name, None)) is None else divisor
        bounds = [bound for name in _BOUNDS if (bound := getattr(text, name, None))]
        return cls(scale=scale, bound=bounds[0] if bounds else None)

    def logits(self, products: Tensor) -> Tensor:
        """Returns float32 logits."""
        scaled = products.float() if self.scale == 1 else products.float() * self.scale
        return scaled if self.bound is None else (scaled / self.bound).tanh_().mul_(self.bound)

    def slopes(self, logits: Tensor) -> Tensor | float:
        """Returns the derivatives of the logits by their products."""
        return self.scale if self.bound is None else (logits / self.bound).square_().neg_().add_(1).mul_(self.scale)


def decoder_of(model: PreTrainedModel) -> Any:
    """Returns the model without its head, a module."""
    decoder = model.get_decoder()
    if not isinstance(decoder, PreTrainedModel):  # as of ModernBERT's decoder, whose head has that name
        return model.get_submodule("model")
    if decoder.get_output_embeddings() is not None:  # as of Llama 4, whose prefix names none of its modules
        return decoder.get_submodule("model")
    return decoder


@torch.no_grad()  # inference mode would spoil the weights that FSDP gathers in it
def has_known_head(model: PreTrainedModel, device: torch.device) -> bool:
    """Returns whether the logits of a model are its linear head in the form that its configuration states.

    Compares them with the model's own forward pass, for hidden states so large that a bound shows.
    device: of the computation.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return False
    large: list[Tensor] = []

    def enlarge(_decoder: nn.Module, _inputs: Any, outputs: Any) -> Any:
        hidden = outputs.last_hidden_state
        hidden = hidden * (_CHECKED_SIZE / head(hidden).abs().max().clamp(min=1e-6))
        large.append(hidden)
        outputs.last_hidden_state = hidden
        return outputs

    hook = decoder_of(model).register_forward_hook(enlarge)
    try:
        expected = model(input_ids=torch.tensor([[0, 1, 2]], device=device), use_cache=False).logits.float()
    finally:
        hook.remove()
    computed = HeadForm.of(model.config).logits(head(large[-1]))
    if computed.shape != expected.shape:
        return False
    share = _TOLERANCE if head.weight.dtype == torch.float32 else _ROUNDED_TOLERANCE
    return float((computed - expected).abs().max()) <= share * float(expected.abs().max())
