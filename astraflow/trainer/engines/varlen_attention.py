"""Kernel of attention over packs on a GPU: torch's FlashAttention-2 over sequences of different lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.trainer.engines.attention_kernels import prefix_groups
from astraflow.trainer.engines.base import Segment

flash_forward = torch.ops.aten._flash_attention_forward
flash_backward = torch.ops.aten._flash_attention_backward


@dataclass(frozen=True, slots=True)
class FlatPositions:
    """Positions in the pack of concatenated sequences."""

    indices: Tensor | None
    """int64 `[n]`; None: all, in order."""

    def of(self, values: Tensor) -> Tensor:
        """Returns `[n, ...]` of `[width, ...]`."""
        return values.contiguous() if self.indices is None else values.index_select(0, self.indices)

    def added(self, total: Tensor | None, values: Tensor, width: int) -> Tensor:
        """Returns the total `[width, ...]` plus the values; no total is 0."""
        if self.indices is None:
            return values if total is None else total.add_(values)
        total = values.new_zeros((width, *values.shape[1:])) if total is None else total
        return total.index_add_(0, self.indices, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenBlock:
    """One kernel call over sequences of different lengths, concatenated."""

    queries: FlatPositions
    keys: FlatPositions
    query_ends: Tensor
    """int32 `[sequences + 1]`: from 0."""
    key_ends: Tensor
    max_queries: int
    max_keys: int
    is_causal: bool

    @property
    def positions(self) -> Tensor | None:
        """Positions in the pack of the queries; None: all, in order."""
        return self.queries.indices

    @property
    def is_first(self) -> bool:
        """False when another block has already computed other keys of these queries."""
        return self.is_causal


class VarlenKernel:
    """torch's FlashAttention-2 on a GPU, in float16 or bfloat16: one call for all segments, one for all prefixes."""

    takes_grouped_keys = True

    def plan(self, segments: Sequence[Segment], device: torch.device) -> list[VarlenBlock]:
        """Returns the blocks of a pack."""
        lengths = [segment.end - segment.begin for segment in segments]
        ends = _ends(lengths, device)
        causal = VarlenBlock(
            queries=FlatPositions(None),
            keys=FlatPositions(None),
            query_ends=ends,
            key_ends=ends,
            max_queries=max(lengths),
            max_keys=max(lengths),
            is_causal=True,
        )
        groups = prefix_groups(segments)
        if not groups:
            return [causal]
        queries = [group.members[1] - group.members[0] for group in groups]
        keys = [group.prefix[1] - group.prefix[0] for group in groups]
        prefixes = VarlenBlock(
            queries=_flat_positions([group.members for group in groups], device),
            keys=_flat_positions([group.prefix for group in groups], device),
            query_ends=_ends(queries, device),
            key_ends=_ends(keys, device),
            max_queries=max(queries),
            max_keys=max(keys),
            is_causal=False,
        )
        return [causal, prefixes]

    def forward(
        self, block: VarlenBlock, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Returns outputs and logarithms of the block's queries."""
        outputs, logarithms, *_ = flash_forward(
            block.queries.of(query),
            block.keys.of(key),
            block.keys.of(value),
            block.query_ends,
            block.key_ends,
            block.max_queries,
            block.max_keys,
            0.0,
            block.is_causal,
            return_debug_mask=False,
            scale=scale,
        )
        return outputs, logarithms.transpose(0, 1)

    def backward(self, block: VarlenBlock, grad: Tensor, inputs: Sequence[Tensor], scale: float) -> tuple[Tensor, ...]:
        """Returns the block's gradients."""
        query, key, value, output, logarithm = inputs
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)
        gradients: tuple[Tensor, ...] = flash_backward(
            block.queries.of(grad),
            block.queries.of(query),
            block.keys.of(key),
            block.keys.of(value),
            block.queries.of(output),
            block.queries.of(logarithm).transpose(0, 1).contiguous(),
            block.query_ends,
            block.key_ends,
            block.max_queries,
            block.max_keys,
            0.0,
            block.is_causal,
            no_dropout,
            torch.empty(0, dtype=torch.uint64, device=query.device),
            scale=scale,
        )
        return gradients


def _flat_positions(ranges: Sequence[tuple[int, int]], device: torch.device) -> FlatPositions:
    return FlatPositions(_on(torch.cat([torch.arange(begin, end) for begin, end in ranges]), device))


def _ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    return _on(torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32), device)


def _on(values: Tensor, device: torch.device) -> Tensor:
    """Returns the values on a GPU, copied without waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
