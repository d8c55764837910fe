"""Attention over a pack: causal within each segment, whole to its prefixes, without a mask and without a dense matrix.

Every token attends to earlier tokens of its segment, and to its prefixes. Each of these sets of keys is computed in a
block by a fused kernel that also returns the logarithm of the sum of exponentials; blocks are merged by it. In the
backward pass each block's kernel receives the merged output and the merged logarithm, which makes its probabilities
those of the whole softmax, so the gradients of the blocks add up.

A sink, as in GPT-OSS, is a score of each head that every query has beside those of its keys, with a value of 0: one
more term of the softmax's denominator, added when all blocks are merged.
Source: Liu et al., "Ring Attention with Blockwise Transformers", arXiv:2310.01889; Dao, "FlashAttention-2",
arXiv:2307.08691.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from astraflow.contract.errors import InvalidInput
from astraflow.models.causal import attention_window, head_sizes
from astraflow.trainer.engines.attention.cudnn import fewest_pairs
from astraflow.trainer.engines.attention.kernels import AttentionKernel, AttentionPlan, SdpaKernel
from astraflow.trainer.engines.attention.varlen import VarlenKernel
from astraflow.trainer.engines.base import Segment
from astraflow.trainer.engines.phase_timer import timed

_UNSUPPORTED = ("softcap", "position_bias")
"""Options of transformers' attention that change the scores."""

Plans: TypeAlias = Mapping[int | None, AttentionPlan]
"""Plan of a pack by the window of a layer; None: full attention."""


class PackAttention:
    """Attention of a model's layers by the plan of a pack, which travels as a keyword through the model's forward.

    Without a plan they compute plain causal attention.
    """

    name = "astraflow_packed"
    """Its name among transformers' implementations of attention."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        """model: whose attention is, or will be, that of this name."""
        self._kernel = kernel_of(model, device)
        self._device = device
        self._model = model

    def arguments(self, segments: Sequence[Segment]) -> dict[str, Any]:
        """Returns the keyword arguments of the decoder's forward that make it attend by these segments."""
        windows = {None, attention_window(self._model)}
        return {"attention_plans": {window: self._kernel.plan(segments, self._device, window) for window in windows}}


def kernel_of(model: PreTrainedModel, device: torch.device) -> AttentionKernel:
    if device.type != "cuda":
        return SdpaKernel()
    head_size = max(head_sizes(model.config.get_text_config()))
    return VarlenKernel(cudnn_pairs=fewest_pairs(device, head_size))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _layer_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    attention_plans: Plans | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Computes one layer as transformers calls it: `[1, heads, width, head size]` -> `[1, width, heads, head size]`."""
    unsupported = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if attention_mask is not None:
        unsupported.append("a mask")
    if dropout:
        unsupported.append("dropout")
    if s_aux is not None and attention_plans is None:
        unsupported.append("sinks without a plan")
    if unsupported:
        raise InvalidInput(
            f"cannot compute a {type(module).__name__} layer over packs: its attention has {', '.join(unsupported)}, "
            "which attention over packs does not compute; set batching = 'auto'",
            code="model.unsupported_attention",
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if attention_plans is None:
        output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        return output.transpose(1, 2), None
    flat = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    plan = plan_of_layer(attention_plans, module, options)
    return packed_attention(plan, *flat, scale=scale, sinks=s_aux)[None], None


AttentionInterface.register(PackAttention.name, _layer_attention)


def plan_of_layer(plans: Plans, module: nn.Module, options: Mapping[str, Any]) -> AttentionPlan:
    """Returns the plan for a layer by the options that transformers gives its attention. Raises: InvalidInput."""
    window = options.get("sliding_window")
    if window not in plans:
        raise InvalidInput(
            f"cannot compute a {type(module).__name__} layer over packs: its window is {window}, which the model's "
            "configuration does not name; set batching = 'auto'",
            code="model.unsupported_attention",
        )
    return plans[window]


def packed_attention(
    plan: AttentionPlan, query: Tensor, key: Tensor, value: Tensor, *, scale: float, sinks: Tensor | None = None
) -> Tensor:
    """Returns attention over a pack, `[width, heads, head size]`.

    query: `[width, heads, head size]`; key, value: `[width, key heads, head size]`, each head for `heads / key heads`
    adjacent query heads. sinks: `[heads]`; None: no head has one.
    """
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1 and not plan[0].takes_grouped_keys:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    arguments = (plan, query, key, value, sinks, scale)
    output: Tensor = _PackedAttention.apply(*arguments)  # type: ignore[no-untyped-call]  # torch's
    return output


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    @timed("attention_s")
    def forward(
        ctx: Any, plan: AttentionPlan, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, scale: float
    ) -> Tensor:
        if len(plan) == 1:  # over the whole pack, in order
            output, logarithm = plan[0].forward(query, key, value, scale)
            logarithm = logarithm.contiguous()
        else:
            output = torch.empty_like(query, memory_format=torch.contiguous_format)
            logarithm = query.new_empty(query.shape[:2], dtype=torch.float32)
            for block in plan:
                outputs, logarithms = block.forward(query, key, value, scale)
                if not block.is_first:
                    outputs, logarithms = _merged(
                        _part(output, block.positions), _part(logarithm, block.positions), outputs, logarithms
                    )
                _write(output, block.positions, outputs)
                _write(logarithm, block.positions, logarithms)
        if sinks is not None:
            output, logarithm = _with_sinks(output, logarithm, sinks)
        ctx.save_for_backward(query, key, value, output, logarithm, sinks)
        ctx.plan, ctx.scale = plan, scale
        return output

    @staticmethod
    @timed("attention_s")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, sinks = ctx.saved_tensors
        totals: list[Tensor | None] = [None, None, None]
        for block in ctx.plan:
            parts = block.backward(grads[0], inputs, ctx.scale)
            owners = (block.queries, block.keys, block.keys)
            totals = [
                owner.added(total, part, len(grads[0]))
                for owner, total, part in zip(owners, totals, parts, strict=True)
            ]
        sink_gradient = None if sinks is None else _sink_gradient(grads[0], inputs[3], inputs[4], sinks)
        return None, *totals, sink_gradient, None


def _with_sinks(output: Tensor, logarithm: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns output and logarithm of the softmax over all keys and a head's sink."""
    whole = torch.logaddexp(logarithm, sinks.float())
    return (output * (logarithm - whole).exp()[..., None]).to(output.dtype), whole


def _sink_gradient(grad: Tensor, output: Tensor, logarithm: Tensor, sinks: Tensor) -> Tensor:
    """Returns the gradient of the sinks, `[heads]`: a larger sink makes the whole output smaller."""
    shares = (sinks.float() - logarithm).exp()
    return -(shares * (grad.float() * output.float()).sum(-1)).sum(0).to(sinks.dtype)


def _part(values: Tensor, positions: Tensor | slice | None) -> Tensor:
    """Returns the values at positions of the pack; None: all."""
    if isinstance(positions, Tensor):
        return values.index_select(0, positions)
    return values if positions is None else values[positions]


def _write(values: Tensor, positions: Tensor | slice | None, part: Tensor) -> None:
    if isinstance(positions, Tensor):
        values.index_copy_(0, positions, part)
    else:
        _part(values, positions).copy_(part)


def _merged(output: Tensor, logarithm: Tensor, more: Tensor, more_logarithm: Tensor) -> tuple[Tensor, Tensor]:
    """Returns output and logarithm of the softmax over the keys of both."""
    merged = torch.logaddexp(logarithm, more_logarithm)
    share = (more_logarithm - merged).exp()[..., None].to(output.dtype)
    return torch.lerp(output, more, share), merged
