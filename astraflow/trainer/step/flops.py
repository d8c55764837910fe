"""Floating-point operations that training needs, for balance over ranks and for the model FLOPs utilization (MFU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

FORWARD_AND_BACKWARD = 3
"""FLOPs of a training pass, in forward passes: the backward pass multiplies twice for each multiplication, and once for
those by frozen weights, whose own gradient it does not need."""

_PEAK_FLOPS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "RTX 4090": 165e12,
}
"""Dense bf16 FLOP/s with float32 accumulation, from the vendor's data sheets, by a part of the device's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCost:
    """FLOPs of a forward pass. A multiplication with an addition counts as two operations.

    Only what the result needs is counted: attention over visible keys, the head at trained tokens, shared tokens once,
    nothing that is computed again to save memory.
    """

    per_token: float
    """Matrix products of a token in all layers."""
    per_pair: float
    """Attention of one token to one visible token (itself included), in all layers: score and weighted sum."""
    per_target: float
    """The head at one trained token."""
    frozen_per_token: float = 0.0
    """Part of `per_token` whose weights are frozen."""
    frozen_per_target: float = 0.0
    """Part of `per_target` whose weights are frozen."""

    @classmethod
    def of_model(cls, model: PreTrainedModel) -> ForwardCost:
        """Counts the matrix products of a causal model: 2-D weights without embeddings, and routed experts' 3-D weights
        by the share of experts that a token visits.

        Attention of layers with a sliding window or a selection of keys, and recurrences, are not counted: for such
        models the result is a lower bound.
        """
        from astraflow.models.output_head import decoder_of

        config = model.config.get_text_config()
        decoder, head = decoder_of(model), model.get_output_embeddings()
        embeddings = decoder.get_input_embeddings().weight
        share = _active_expert_share(config)
        weights = [weight for weight in decoder.parameters() if weight is not embeddings]
        products = [
            (weight.requires_grad, 2.0 * weight.numel() * (share if weight.ndim == 3 else 1.0))
            for weight in weights
            if weight.ndim in (2, 3)
        ]
        per_target = 2.0 * head.weight.numel()
        return cls(
            per_token=sum(flops for _, flops in products),
            per_pair=4.0 * _attention_size(config),
            per_target=per_target,
            frozen_per_token=sum(flops for is_trained, flops in products if not is_trained),
            frozen_per_target=0.0 if head.weight.requires_grad else per_target,
        )

    def flops(self, *, tokens: float, pairs: float, targets: float) -> float:
        """Returns the FLOPs of a forward pass."""
        return self.per_token * tokens + self.per_pair * pairs + self.per_target * targets

    def training_flops(self, *, tokens: float, pairs: float, targets: float) -> float:
        """Returns the FLOPs of a forward and backward pass."""
        frozen = self.frozen_per_token * tokens + self.frozen_per_target * targets
        return FORWARD_AND_BACKWARD * self.flops(tokens=tokens, pairs=pairs, targets=targets) - frozen


def peak_flops(device: torch.device) -> float | None:
    """Returns the device's dense bf16 peak, FLOP/s; None for a CPU and unknown GPUs."""
    if device.type != "cuda":
        return None
    import torch

    name = torch.cuda.get_device_name(device)
    matching_names = [part for part in _PEAK_FLOPS if part in name]
    return _PEAK_FLOPS[max(matching_names, key=len)] if matching_names else None


def _attention_size(config: PretrainedConfig) -> float:
    """Returns the sizes of all heads of the layers with full attention: the mean of those of keys and of values."""
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return 0.0
    types = getattr(config, "layer_types", None)
    if types is None:
        sizes = [] if getattr(config, "sliding_window", None) else _head_sizes(config)
    else:
        sizes = [size for size, kind in zip(_head_sizes(config), types, strict=True) if kind in _FULL_ATTENTION]
    return float(heads * sum(sizes))


def _head_sizes(config: PretrainedConfig) -> list[float]:
    from astraflow.models.causal import head_sizes

    if getattr(config, "kv_lora_rank", None) is None:
        return [float(size) for size in head_sizes(config)]
    size = (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim) / 2
    return [size] * config.num_hidden_layers


_FULL_ATTENTION = ("full_attention", "attention", "hybrid")
"""Types of layers with attention to all earlier tokens, in configurations of transformers."""


def _active_expert_share(config: object) -> float:
    counts = [getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")]
    experts = next((count for count in counts if count), None)
    active = getattr(config, "num_experts_per_tok", None)
    return active / experts if experts and active else 1.0
