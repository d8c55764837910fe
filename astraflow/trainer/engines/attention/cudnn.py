"""Attention over long sequences by cuDNN, for which the lengths of all sequences of a call are equal.

On an H200 it is 1.8 times as fast as FlashAttention-2. But cuDNN builds a plan for each new shape, which takes longer
than the attention, and trajectories have all lengths. So a sequence is padded to one of eight lengths for each power of
two. Padding comes after a sequence's own tokens, which do not see it in causal attention, and has no gradient. Keys
that every query sees cannot be padded: a prefix is cut to such a length, and the rest is left to the other kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from astraflow.trainer.engines.attention.segments import PrefixGroup

cudnn_forward = torch.ops.aten._cudnn_attention_forward
cudnn_backward = torch.ops.aten._cudnn_attention_backward

_FIRST_CAPABILITY = (9, 0)
"""Compute capability of the first GPUs on which cuDNN is faster than FlashAttention-2."""
_MAX_HEAD_SIZE = 128
_FEWEST_PAIRS = 1 << 23
"""Pairs of a query and a key of a call below which the call costs the host more than it saves the GPU: one sequence of
2,897 tokens, 8 of 1,024."""
_FINEST_STEP = 128
_PADDING_LOGARITHM = 1e30
"""Makes the probabilities of padding 0."""


def fewest_pairs(device: torch.device, head_size: int) -> int | None:
    """Returns the number of pairs of a query and a key from which a call is worth it on a device; None: never."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _FIRST_CAPABILITY:
        return None
    return _FEWEST_PAIRS if head_size <= _MAX_HEAD_SIZE else None


def length_step(length: int) -> int:
    """Returns the distance of the lengths of calls near a length.

    >>> [length_step(length) for length in (100, 1024, 2047, 2048, 16_384)]
    [128, 128, 128, 256, 2048]
    """
    return max(_FINEST_STEP, 1 << max(0, length.bit_length() - 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualSequences:
    """Adjacent sequences of the same length in a pack, each padded for a call."""

    begin: int
    count: int
    length: int
    padded: int

    @property
    def positions(self) -> slice:
        """Positions in the pack, without padding."""
        return slice(self.begin, self.begin + self.count * self.length)

    @property
    def begins(self) -> range:
        """First position of each sequence."""
        return range(self.begin, self.begin + self.count * self.length, self.length)

    def of(self, values: Tensor, *, padding: float = 0.0) -> Tensor:
        """Returns `[sequences, heads, padded length, size]` of `[width, heads, size]`."""
        rows: Tensor = values[self.positions].unflatten(0, (self.count, self.length))
        if self.padded > self.length:
            rows = pad(rows, (0, 0, 0, 0, 0, self.padded - self.length), value=padding)
        return rows.transpose(1, 2)

    def flat(self, values: Tensor) -> Tensor:
        """Returns `[sequences * length, heads, size]` of what a call returned."""
        return values.transpose(1, 2)[:, : self.length].flatten(0, 1)

    def added(self, total: Tensor | None, values: Tensor, width: int) -> Tensor:
        """Returns the total `[width, heads, size]` plus what a call returned; no total is 0."""
        flat = self.flat(values)
        if total is None:
            if len(flat) == width:
                return flat
            total = flat.new_zeros((width, *flat.shape[1:]))
        total[self.positions] += flat
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnBlock:
    """One call of cuDNN."""

    takes_grouped_keys: ClassVar[bool] = True
    queries: EqualSequences
    keys: EqualSequences
    """The same as `queries` when causal."""
    is_causal: bool

    @property
    def positions(self) -> slice:
        """Positions in the pack of the queries."""
        return self.queries.positions

    @property
    def is_first(self) -> bool:
        """False when another block has already computed other keys of these queries."""
        return self.is_causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Returns outputs and logarithms of the block's queries."""
        outputs, logarithms, *_ = cudnn_forward(
            self.queries.of(query),
            self.keys.of(key),
            self.keys.of(value),
            None,
            None,
            None,
            self.queries.padded,
            self.keys.padded,
            True,
            0.0,
            self.is_causal,
            False,
            scale=scale,
        )
        return self.queries.flat(outputs), self.queries.flat(logarithms)[..., 0]

    def backward(self, grad: Tensor, inputs: Sequence[Tensor], scale: float) -> tuple[Tensor, ...]:
        """Returns the block's gradients, as `EqualSequences.added` takes them."""
        query, key, value, output, logarithm = inputs
        no_dropout = torch.zeros((), dtype=torch.int64, device=query.device)
        gradients: tuple[Tensor, ...] = cudnn_backward(
            self.queries.of(grad),
            self.queries.of(query),
            self.keys.of(key),
            self.keys.of(value),
            self.queries.of(output),
            self.queries.of(logarithm[..., None], padding=_PADDING_LOGARITHM).contiguous(),
            no_dropout,
            no_dropout,
            None,
            None,
            None,
            self.queries.padded,
            self.keys.padded,
            0.0,
            self.is_causal,
            scale=scale,
        )
        return gradients


def causal_blocks(ranges: Sequence[tuple[int, int]], *, fewest: int) -> list[CudnnBlock]:
    """Returns the blocks of those segments that are worth a call: adjacent ones of the same length are in one.

    fewest: pairs of a query and a key of a call.
    """
    runs: list[list[tuple[int, int]]] = [list(ranges[:1])]
    for before, bounds in pairwise(ranges):
        is_adjacent = before[1] == bounds[0] and before[1] - before[0] == bounds[1] - bounds[0]
        if is_adjacent:
            runs[-1].append(bounds)
        else:
            runs.append([bounds])
    blocks = []
    for run in runs:
        begin, end = run[0]
        if len(run) * (end - begin) ** 2 >= fewest:
            sequences = _padded(begin, len(run), end - begin)
            blocks.append(CudnnBlock(queries=sequences, keys=sequences, is_causal=True))
    return blocks


def prefix_block(group: PrefixGroup, *, fewest: int) -> tuple[CudnnBlock | None, PrefixGroup | None]:
    """Returns the block of a group's members over the largest part of the prefix that is a length of calls, if that is
    worth a call, and the rest of the prefix, if any. fewest: pairs of a query and a key of a call."""
    (first, last), (begin, end) = group.members, group.prefix
    whole = end - begin - (end - begin) % length_step(end - begin)
    if not whole or (last - first) * whole < fewest:
        return None, group
    block = CudnnBlock(
        queries=_padded(first, 1, last - first),
        keys=EqualSequences(begin=begin, count=1, length=whole, padded=whole),
        is_causal=False,
    )
    return block, None if begin + whole == end else PrefixGroup(group.members, (begin + whole, end))


def _padded(begin: int, count: int, length: int) -> EqualSequences:
    return EqualSequences(begin=begin, count=count, length=length, padded=length + -length % length_step(length))
