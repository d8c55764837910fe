"""Port of the kernels of attention over packs, and the kernel of a CPU: torch's fused attention."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor

from astraflow.trainer.engines.attention.segments import (
    ends_of_readers,
    longest_trajectory,
    prefix_levels,
    small_trees,
    windowed_prefixes,
)
from astraflow.trainer.engines.base import Segment

_MAX_PADDING, _FREE_PADDING = 1.25, 16
"""Segments of up to 1.25 times the length of the shortest plus 16 tokens are one call of the CPU kernel, padded within
the call: short segments cost less than calls."""
_MULTIPLE = 16
"""Lengths of calls are rounded up to a multiple of this: the products of the kernel take half as long again for 127
tokens as for 128. Short ones to a multiple of 4."""
_MAX_MASKED = 128
"""Tokens of a tree up to which it is one sequence with a mask instead of several blocks: for short sequences the copies
around a kernel cost more than masked products."""


class BlockPositions(Protocol):
    """Positions in the pack of the queries or of the keys of a block."""

    def added(self, total: Tensor | None, values: Tensor, width: int) -> Tensor:
        """Returns the total `[width, heads, head size]` plus what the block's `backward` returned; no total is 0."""


class AttentionBlock(Protocol):
    """One call of a kernel. Tensors are `[width, heads, head size]` of the whole pack, logarithms `[width, heads]`
    float32."""

    takes_grouped_keys: ClassVar[bool]
    """True when there may be fewer key heads than query heads."""

    @property
    def queries(self) -> BlockPositions:
        """Queries of the block."""

    @property
    def keys(self) -> BlockPositions:
        """Keys of the block."""

    @property
    def positions(self) -> Tensor | slice | None:
        """Positions in the pack of the queries that `forward` returns; None: all, in order."""

    @property
    def is_first(self) -> bool:
        """False when another block has already computed other keys of these queries."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Returns outputs and logarithms of the block's queries."""

    def backward(self, grad: Tensor, inputs: Sequence[Tensor], scale: float) -> tuple[Tensor, ...]:
        """Returns the block's gradients of query, key and value, for its queries and keys.

        inputs: query, key, value, merged output, merged logarithm.
        """


AttentionPlan: TypeAlias = Sequence[AttentionBlock]
"""Blocks of a pack, in which every token has its segment's keys in one causal block, and the keys of its prefixes, if
any, in later ones."""


class AttentionKernel(Protocol):
    """Divides attention over a pack into blocks."""

    def plan(self, segments: Sequence[Segment], device: torch.device, window: int | None = None) -> AttentionPlan:
        """Returns the blocks of a pack.

        window: number of positions of its trajectory, its own included, that a token attends to; None: all.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions in the pack of the sequences of one kernel call."""

    indices: Tensor
    """int64 `[calls, length]`. Padding repeats a position of the pack."""
    begin: int | None
    """First position where all are consecutive, so that nothing needs to be copied."""
    inverse: Tensor | None = None
    """int64 `[width]`: flat index of each position of the pack, when this call has all of them; else None."""

    @classmethod
    def of_ranges(cls, ranges: Sequence[tuple[int, int]]) -> "Positions":
        """ranges: begin and end of each sequence."""
        return cls._of_length(ranges, max(map(_length, ranges)))

    @classmethod
    def padded(cls, ranges: Sequence[tuple[int, int]]) -> "Positions":
        """Returns sequences that may be longer than the ranges, where that makes the kernel faster."""
        longest = max(map(_length, ranges))
        exact = cls._of_length(ranges, longest)
        if exact.begin is not None:  # what padding gains is lost by the copies that it needs
            return exact
        multiple = _MULTIPLE if longest > 2 * _MULTIPLE else _MULTIPLE // 4
        return cls._of_length(ranges, -(-longest // multiple) * multiple)

    @classmethod
    def _of_length(cls, ranges: Sequence[tuple[int, int]], length: int) -> "Positions":
        begins, ends = torch.tensor(ranges).T[..., None]
        indices = torch.minimum(begins + torch.arange(length), ends - 1)
        first = int(indices[0, 0])
        is_consecutive = bool((indices.flatten() == torch.arange(first, first + indices.numel())).all())
        return cls(indices=indices, begin=first if is_consecutive else None)

    def of(self, values: Tensor) -> Tensor:
        """Returns `[calls, heads, length, head size]` of `[width, heads, head size]`, as the CPU kernel takes it."""
        calls: Tensor = self._flat(values).unflatten(0, self.indices.shape)
        return calls.transpose(1, 2)

    def added(self, total: Tensor | None, values: Tensor, width: int) -> Tensor:
        """Returns the total `[width, heads, head size]` plus what the kernel returned; no total is 0."""
        flat = values.transpose(1, 2).flatten(0, 1)
        if total is None and self.begin == 0 and len(flat) == width:
            return flat
        if total is None and self.inverse is not None:
            return flat.index_select(0, self.inverse)
        total = flat.new_zeros((width, *flat.shape[1:])) if total is None else total
        if self.begin is None:
            return total.index_add_(0, self.indices.flatten(), flat)
        total[self.begin : self.begin + len(flat)] += flat
        return total

    def _flat(self, values: Tensor) -> Tensor:
        if self.begin is None:
            return values.index_select(0, self.indices.flatten())
        return values[self.begin : self.begin + self.indices.numel()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SdpaBlock:
    """One call of the CPU kernel over sequences of queries and of keys."""

    takes_grouped_keys: ClassVar[bool] = False
    queries: Positions
    keys: Positions
    """The same as `queries` when causal."""
    is_causal: bool
    is_padding: Tensor | None
    """bool `[calls, queries]`; None without padding."""
    kept: Tensor | None
    """int64: flat indices of the queries at `positions`; None: all, in order."""
    positions: Tensor | None
    """int64: positions in the pack of the queries that are not padding; None: all, in order."""
    mask: Tensor | None = None
    """float32 `[calls, 1, queries, keys]`: 0 where a query attends to a key, else -inf; None: to all."""
    is_first: bool = True
    """False when another block has already computed other keys of these queries."""

    @classmethod
    def of_ranges(
        cls, queries: Sequence[tuple[int, int]], keys: Sequence[tuple[int, int]] | None = None
    ) -> "SdpaBlock":
        """keys: None for a causal block."""
        query_positions = Positions.padded(queries)
        lengths = torch.tensor([end - begin for begin, end in queries])
        is_padding = torch.arange(query_positions.indices.shape[1]) >= lengths[:, None]
        kept = (~is_padding).flatten().nonzero()[:, 0] if is_padding.any() else None
        flat = query_positions.indices.flatten()
        return cls(
            queries=query_positions,
            keys=query_positions if keys is None else Positions.of_ranges(keys),
            is_causal=keys is None,
            is_padding=None if kept is None else is_padding,
            kept=kept,
            positions=flat if kept is None else flat[kept],
            is_first=keys is None,
        )

    def of_whole_pack(self) -> "SdpaBlock":
        """Returns this causal block for a pack that has no other, so that results are gathered, not scattered."""
        flat = self.queries.indices.flatten()
        kept = torch.arange(len(flat)) if self.kept is None else self.kept
        inverse = torch.empty_like(kept)
        inverse[flat[kept]] = kept
        positions = replace(self.queries, inverse=inverse)
        is_in_order = self.kept is None and self.queries.begin == 0
        return replace(self, queries=positions, keys=positions, kept=None if is_in_order else inverse, positions=None)

    def windowed(self, window: int) -> "SdpaBlock":
        """Returns this block with a mask: each query attends to keys less than `window` positions before it.

        Keys of a block of a prefix end where the segment begins, so distances in the trajectory follow from indices; a
        gap between both is a smaller window.
        """
        query_indices, keys = self.queries.indices, self.keys.indices
        offsets = query_indices - query_indices[:, :1] + (0 if self.is_causal else keys.shape[1])
        distances = offsets[:, :, None] - torch.arange(keys.shape[1])
        is_seen = (distances < window) & (distances >= 0)
        mask = torch.zeros(is_seen.shape).masked_fill_(~is_seen, -torch.inf)
        return replace(self, is_causal=False, mask=mask[:, None])

    def masked(self, ends: Tensor) -> "SdpaBlock":
        """Returns this causal block with a mask: a key is seen by the queries after it up to an end.

        ends: `[width]`, of the queries that attend to each position. Padding attends to what its position attends to.
        """
        indices = self.queries.indices
        length = indices.shape[1]
        is_seen = indices[:, :, None] < ends[indices][:, None, :]
        is_seen &= torch.ones(length, length, dtype=torch.bool).tril()
        mask = torch.zeros(is_seen.shape).masked_fill_(~is_seen, -torch.inf)
        return replace(self, is_causal=False, mask=mask[:, None])

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Returns outputs and logarithms of the block's queries."""
        outputs, logarithms = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            self.queries.of(query),
            self.keys.of(key),
            self.keys.of(value),
            0.0,
            self.is_causal,
            attn_mask=self.mask,
            scale=scale,
        )
        outputs, logarithms = (part.transpose(1, 2).flatten(0, 1) for part in (outputs, logarithms))
        if self.kept is None:
            return outputs, logarithms
        return outputs.index_select(0, self.kept), logarithms.index_select(0, self.kept)

    def backward(self, grad: Tensor, inputs: Sequence[Tensor], scale: float) -> tuple[Tensor, ...]:
        """Returns the block's gradients, as `Positions.added` takes them."""
        query, key, value, output, logarithm = inputs
        logarithms = self.queries.of(logarithm)
        if self.is_padding is not None:  # the probabilities of padding, and so all its gradients, become exactly 0
            logarithms = logarithms.masked_fill(self.is_padding[:, None], torch.inf)
        gradients: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            self.queries.of(grad),
            self.queries.of(query),
            self.keys.of(key),
            self.keys.of(value),
            self.queries.of(output),
            logarithms.contiguous(),
            0.0,
            self.is_causal,
            attn_mask=self.mask,
            scale=scale,
        )
        return gradients


class SdpaKernel:
    """torch's fused attention on a CPU. Segments of similar length are computed by one call."""

    def plan(self, segments: Sequence[Segment], device: torch.device, window: int | None = None) -> list[SdpaBlock]:
        """Returns the blocks of a pack."""
        if window is not None and window < longest_trajectory(segments):
            return _windowed_blocks(segments, window)
        levels = prefix_levels(segments)
        small = small_trees(segments, largest=_MAX_MASKED)
        is_small = torch.zeros(segments[-1].end, dtype=torch.bool)
        for begin, end in small:
            is_small[begin:end] = True
        in_small = is_small.tolist()
        ranges = sorted(((part.begin, part.end) for part in segments if not in_small[part.begin]), key=_length)
        blocks = [SdpaBlock.of_ranges(part) for part in _similar(ranges)]
        for groups in levels:
            by_prefix_length: dict[int, dict[tuple[int, int], tuple[int, int]]] = {}
            for group in groups:
                if not in_small[group.prefix[0]]:
                    by_prefix_length.setdefault(_length(group.prefix), {})[group.members] = group.prefix
            for prefixes in by_prefix_length.values():
                blocks += [
                    SdpaBlock.of_ranges(members, [prefixes[part] for part in members])
                    for members in _similar(sorted(prefixes, key=_length))
                ]
        if small:
            ends = ends_of_readers(segments, levels)
            blocks += [SdpaBlock.of_ranges(part).masked(ends) for part in _similar(sorted(small, key=_length))]
        return [blocks[0].of_whole_pack()] if len(blocks) == 1 else blocks


def _windowed_blocks(segments: Sequence[Segment], window: int) -> list[SdpaBlock]:
    """Returns blocks with masks: this kernel has no window."""
    ranges = sorted(((segment.begin, segment.end) for segment in segments), key=_length)
    blocks = [SdpaBlock.of_ranges(part).windowed(window) for part in _similar(ranges)]
    by_keys: dict[tuple[int, int], dict[tuple[int, int], tuple[int, int]]] = {}
    for pair in windowed_prefixes(segments, window):
        by_keys.setdefault((_length(pair.keys), pair.gap), {})[pair.queries] = pair.keys
    for (_, gap), pairs in by_keys.items():
        blocks += [
            SdpaBlock.of_ranges(part, [pairs[queries] for queries in part]).windowed(window - gap)
            for part in _similar(sorted(pairs, key=_length))
        ]
    return [blocks[0].of_whole_pack()] if len(blocks) == 1 else blocks


def _similar(ranges: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Divides ranges, which are sorted by length, into runs of similar length."""
    runs: list[list[tuple[int, int]]] = []
    for bounds in ranges:
        if runs and _length(bounds) <= _MAX_PADDING * _length(runs[-1][0]) + _FREE_PADDING:
            runs[-1].append(bounds)
        else:
            runs.append([bounds])
    return runs


def _length(bounds: tuple[int, int]) -> int:
    return bounds[1] - bounds[0]
