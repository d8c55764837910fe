"""Kernel of attention over packs on a GPU: torch's FlashAttention-2 over sequences of different lengths, and cuDNN over
long ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from astraflow.trainer.engines.attention.cudnn import CudnnBlock, causal_blocks, prefix_block
from astraflow.trainer.engines.attention.segments import (
    WindowedPrefix,
    longest_trajectory,
    prefix_levels,
    windowed_prefixes,
)
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

    takes_grouped_keys: ClassVar[bool] = True
    queries: FlatPositions
    keys: FlatPositions
    query_ends: Tensor
    """int32 `[sequences + 1]`: from 0."""
    key_ends: Tensor
    max_queries: int
    max_keys: int
    is_causal: bool
    window_left: int | None = None
    """Keys before the key at a query's own place, counted from the ends of both sequences, that it attends to; None:
    all."""

    @property
    def positions(self) -> Tensor | None:
        """Positions in the pack of the queries; None: all, in order."""
        return self.queries.indices

    @property
    def window_right(self) -> int | None:
        """Keys after that key that it attends to; None: as many as `is_causal` says."""
        return None if self.window_left is None or self.is_causal else -1

    @property
    def is_first(self) -> bool:
        """False when another block has already computed other keys of these queries."""
        return self.is_causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Returns outputs and logarithms of the block's queries."""
        outputs, logarithms, *_ = flash_forward(
            self.queries.of(query),
            self.keys.of(key),
            self.keys.of(value),
            self.query_ends,
            self.key_ends,
            self.max_queries,
            self.max_keys,
            0.0,
            self.is_causal,
            return_debug_mask=False,
            scale=scale,
            window_size_left=self.window_left,
            window_size_right=self.window_right,
        )
        return outputs, logarithms.transpose(0, 1)

    def backward(self, grad: Tensor, inputs: Sequence[Tensor], scale: float) -> tuple[Tensor, ...]:
        """Returns the block's gradients."""
        query, key, value, output, logarithm = inputs
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)
        gradients: tuple[Tensor, ...] = flash_backward(
            self.queries.of(grad),
            self.queries.of(query),
            self.keys.of(key),
            self.keys.of(value),
            self.queries.of(output),
            self.queries.of(logarithm).transpose(0, 1).contiguous(),
            self.query_ends,
            self.key_ends,
            self.max_queries,
            self.max_keys,
            0.0,
            self.is_causal,
            no_dropout,
            torch.empty(0, dtype=torch.uint64, device=query.device),
            scale=scale,
            window_size_left=self.window_left,
            window_size_right=self.window_right,
        )
        return gradients


class VarlenKernel:
    """torch's FlashAttention-2 on a GPU, in float16 or bfloat16: one call for all segments, one for all prefixes of a
    level of the trees. Long ones are computed by cuDNN, if it is faster."""

    def __init__(self, *, cudnn_pairs: int | None = None) -> None:
        """cudnn_pairs: pairs of a query and a key from which a call of cuDNN is worth it; None: it computes nothing."""
        self._cudnn_pairs = cudnn_pairs

    def plan(
        self, segments: Sequence[Segment], device: torch.device, window: int | None = None
    ) -> list[VarlenBlock | CudnnBlock]:
        """Returns the blocks of a pack."""
        if window is not None and window < longest_trajectory(segments):
            return [*_windowed_blocks(segments, device, window)]
        ranges = [(segment.begin, segment.end) for segment in segments]
        levels = prefix_levels(segments)
        long: list[CudnnBlock] = []
        if self._cudnn_pairs is not None:
            long = causal_blocks(ranges, fewest=self._cudnn_pairs)
            covered = {position for block in long for position in block.queries.begins}
            ranges = [bounds for bounds in ranges if bounds[0] not in covered]
            parts = [[prefix_block(group, fewest=self._cudnn_pairs) for group in groups] for groups in levels]
            long += [block for level in parts for block, _ in level if block is not None]
            levels = [[rest for _, rest in level if rest is not None] for level in parts]
        blocks: list[VarlenBlock | CudnnBlock] = []
        if ranges:
            blocks.append(_block(ranges, None, device, is_whole_pack=len(ranges) == len(segments)))
        blocks += long
        for groups in filter(None, levels):
            blocks.append(_block([group.members for group in groups], [group.prefix for group in groups], device))
        return blocks


def _windowed_blocks(segments: Sequence[Segment], device: torch.device, window: int) -> list[VarlenBlock]:
    """Returns one call for all segments, and one for the beginnings of segments of each length and their prefixes: the
    kernel aligns the ends of queries and keys, so a call's window fits one number of queries and one gap."""
    ranges = [(segment.begin, segment.end) for segment in segments]
    blocks = [_block(ranges, None, device, window_left=window - 1, is_whole_pack=True)]
    by_lengths: dict[tuple[int, int], list[WindowedPrefix]] = {}
    for pair in windowed_prefixes(segments, window):
        by_lengths.setdefault((pair.queries[1] - pair.queries[0], pair.gap), []).append(pair)
    for (length, gap), pairs in by_lengths.items():
        queries, keys = [pair.queries for pair in pairs], [pair.keys for pair in pairs]
        blocks.append(_block(queries, keys, device, window_left=window - 1 - length - gap))
    return blocks


def _block(
    queries: Sequence[tuple[int, int]],
    keys: Sequence[tuple[int, int]] | None,
    device: torch.device,
    *,
    window_left: int | None = None,
    is_whole_pack: bool = False,
) -> VarlenBlock:
    """Returns a call over these ranges. keys: None for a causal call. is_whole_pack: the ranges are all positions of
    the pack, in order."""
    query_lengths, key_lengths = ([end - begin for begin, end in ranges] for ranges in (queries, keys or queries))
    query_positions = FlatPositions(None) if is_whole_pack else _flat_positions(queries, device)
    return VarlenBlock(
        queries=query_positions,
        keys=query_positions if keys is None else _flat_positions(keys, device),
        query_ends=_ends(query_lengths, device),
        key_ends=_ends(key_lengths, device),
        max_queries=max(query_lengths),
        max_keys=max(key_lengths),
        is_causal=keys is None,
        window_left=window_left,
    )


def _flat_positions(ranges: Sequence[tuple[int, int]], device: torch.device) -> FlatPositions:
    return FlatPositions(_on(torch.cat([torch.arange(begin, end) for begin, end in ranges]), device))


def _ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    return _on(torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32), device)


def _on(values: Tensor, device: torch.device) -> Tensor:
    """Returns the values on a GPU, copied without waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
