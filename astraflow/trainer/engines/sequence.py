"""Sequence parallelism (Ulysses): ranks of a group split the tokens of a pack, and around attention its heads.

Each rank holds a slice of the tokens for everything that works token by token. Before attention all-to-all gives it
all tokens of its share of the heads, and after attention its slice of the tokens of all heads again.
Source: Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface

from astraflow.algorithms.tokens import TokenScores
from astraflow.contract.errors import InternalError, InvalidInput
from astraflow.models.routers import CHOICES
from astraflow.trainer.engines.attention.attention import PackAttention, Plans, packed_attention, plan_of_layer
from astraflow.trainer.engines.attention.kernels import AttentionPlan
from astraflow.trainer.engines.base import Pack, Segment
from astraflow.trainer.engines.scoring.base import PackInputs
from astraflow.trainer.engines.scoring.scorer import Scorer

_IMPLEMENTATION = "astraflow_sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """Ranks that compute one pack together."""

    rank: int
    """Number of this rank in the group: its slice of the tokens."""
    ranks: int
    group: dist.ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceInputs(PackInputs):
    """Part of a pack that one rank of a sequence group computes, on the device."""

    own_tokens: Tensor
    """int64: indices of this rank's trained tokens among those of the pack."""
    tokens: int
    """Trained tokens of the whole pack."""


class SequenceScorer(nn.Module):
    """Computes scores of packs together with the other ranks of a sequence group, which get the same packs."""

    def __init__(self, scorer: Scorer, device: torch.device, group: SequenceGroup) -> None:
        """scorer: of whole packs; its model then only computes slices.

        Raises: InvalidInput when the model cannot be computed in packs, or its heads not be divided over the group.
        """
        super().__init__()
        if obstacle := scorer.obstacle():
            raise InvalidInput(
                f"cannot train a {type(scorer.model).__name__} with sequence_ranks = {group.ranks}: {obstacle}, and "
                "only attention alone is divided over sequence ranks; set sequence_ranks = 1",
                code="trainer.batching_not_exact",
            )
        config = scorer.model.config.get_text_config()
        _check_heads(config.num_attention_heads, config.num_key_value_heads, group.ranks)
        self._attention = PackAttention(scorer.model, device)
        self.scorer = scorer
        self._device = device
        self._group = group
        self.ranks = group.ranks
        """Ranks of the group. Count."""
        self.attach()

    def attach(self) -> None:
        """Makes the model compute slices."""
        self.scorer.model.set_attn_implementation(_IMPLEMENTATION)

    def inputs(self, pack: Pack) -> SliceInputs:
        """Returns this rank's slice of the pack, which is padded at its end to a multiple of the ranks."""
        width = len(pack.input_ids)
        padding = -width % self._group.ranks
        part = (width + padding) // self._group.ranks
        begin = self._group.rank * part
        padded = (Segment(begin=width, end=width + padding),) if padding else ()
        plans = self._attention.arguments((*pack.segments, *padded))["attention_plans"]
        own_tokens = ((pack.predictors >= begin) & (pack.predictors < begin + part)).nonzero()[:, 0]
        positions = pad(pack.positions, (0, padding))[None, begin : begin + part]
        tensors = {
            "input_ids": pad(pack.input_ids, (0, padding))[None, begin : begin + part],
            "predictors": pack.predictors[own_tokens] - begin,
            "own_tokens": own_tokens,
            **{name: values[own_tokens] for name, values in pack.target_tensors().items()},
        }
        return SliceInputs(
            **{name: _uploaded(value, self._device) for name, value in tensors.items()},
            arguments={
                "position_ids": _uploaded(positions, self._device),
                "sequence_plans": (plans, self._group),
                **self._replayed(pack, begin, begin + part, width + padding),
            },
            tokens=len(pack.targets),
            top=pack.top,
        )

    def _replayed(self, pack: Pack, begin: int, end: int, width: int) -> dict[str, Tensor]:
        """Returns the argument with the experts to replay in a slice of a pack that is padded to a width."""
        choices = self.scorer.choices(pack)
        if choices is None:
            return {}
        padded = pad(choices, (0, 0, 0, 0, 0, width - len(choices)), value=-1)
        return {CHOICES: _uploaded(padded[begin:end], self._device)}

    def forward(self, inputs: SliceInputs, temperature: float = 1.0) -> TokenScores:
        """Returns the scores of all the pack's targets, on every rank of the group, with gradient.

        Every rank computes the same loss of them; each token's gradient goes to the rank that computed it, so the
        ranks' gradients add up to that of one loss.
        """
        own = self.scorer(inputs, temperature)
        if own.values is not None:
            return TokenScores.of_values(_gathered(own.values, inputs, self._group))
        values = {field.name: getattr(own, field.name) for field in fields(own)}
        choices = values.pop("replayed_choices")
        return TokenScores(
            **{name: _gathered(value, inputs, self._group) for name, value in values.items() if value is not None},
            replayed_choices=None if choices is None else _summed(choices, self._group),
        )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _layer_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sequence_plans: tuple[Plans, SequenceGroup] | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Computes one layer as transformers calls it: `[1, heads, width, head size]` -> `[1, width, heads, head size]`."""
    if sequence_plans is None:
        raise InternalError("cannot compute attention: the pack has no plan; call the model through its scorer")
    plans, group = sequence_plans
    plan = plan_of_layer(plans, module, options)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    flat = [part[0].transpose(0, 1) for part in (query, key, value)]
    return _sequence_attention(plan, *flat, scale=scale, group=group, sinks=s_aux)[None], None


AttentionInterface.register(_IMPLEMENTATION, _layer_attention)


def _check_heads(query_heads: int, key_heads: int, ranks: int) -> None:
    """Checks that the heads can be divided over a sequence group. Raises: InvalidInput."""
    if query_heads % ranks or (key_heads % ranks and ranks % key_heads):
        raise InvalidInput(
            f"cannot split {query_heads} query heads and {key_heads} key heads over {ranks} sequence ranks: they do "
            "not divide evenly; choose `sequence_ranks` that divides the query heads, and divides the key heads or is "
            "a multiple of them",
            code="trainer.heads_not_divisible",
        )


def _sequence_attention(
    plan: AttentionPlan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    group: SequenceGroup,
    sinks: Tensor | None = None,
) -> Tensor:
    """Returns `packed_attention` of the whole pack, for this rank's slice. Collective in the group.

    query: `[width, heads, head size]` of the slice; key, value: with their own number of heads. sinks: of all heads.
    """
    if key.shape[1] < group.ranks:  # each key head goes to several ranks
        repeats = group.ranks // key.shape[1]
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    query, key, value = (_to_heads(part, group) for part in (query, key, value))
    own_sinks = None if sinks is None else sinks.chunk(group.ranks)[group.rank]
    return _to_tokens(packed_attention(plan, query, key, value, scale=scale, sinks=own_sinks), group)


def _gathered(own: Tensor, inputs: SliceInputs, group: SequenceGroup) -> Tensor:
    """Returns the values of all trained tokens of the pack, `[tokens, ...]`."""
    placed = own.new_zeros((inputs.tokens, *own.shape[1:])).index_copy(0, inputs.own_tokens, own)
    result: Tensor = _SumForward.apply(placed, group.group)  # type: ignore[no-untyped-call]  # torch's
    return result


def _summed(values: Tensor, group: SequenceGroup) -> Tensor:
    """Returns the sum over the group, of values without gradient."""
    total = values.clone()
    dist.all_reduce(total, group=group.group)
    return total


def _to_heads(values: Tensor, group: SequenceGroup) -> Tensor:
    """`[width / ranks, heads, size]` -> `[width, heads / ranks, size]`."""
    width, heads, size = values.shape
    sent = values.reshape(width, group.ranks, heads // group.ranks, size).transpose(0, 1)
    received: Tensor = _AllToAll.apply(sent, group.group)  # type: ignore[no-untyped-call]  # torch's
    return received.flatten(0, 1)


def _to_tokens(values: Tensor, group: SequenceGroup) -> Tensor:
    """`[width, heads / ranks, size]` -> `[width / ranks, heads, size]`."""
    received: Tensor = _AllToAll.apply(values.unflatten(0, (group.ranks, -1)), group.group)  # type: ignore[no-untyped-call]  # torch's
    return received.transpose(0, 1).flatten(1, 2)


class _AllToAll(torch.autograd.Function):
    """Sends part i of the first dimension to rank i; the gradient takes the same way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchange(values, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchange(grads[0], ctx.group), None


class _SumForward(torch.autograd.Function):
    """Sum over the group; the gradient passes unchanged, because every rank has the same one."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _exchange(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    values = values.contiguous()
    received = torch.empty_like(values)
    dist.all_to_all_single(received, values, group=group)
    return received


def _uploaded(values: Tensor, device: torch.device) -> Tensor:
    """Returns the values on a GPU, copied without waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
