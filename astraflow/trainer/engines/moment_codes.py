"""Moments of an optimizer in 8 bits: a code for each element, and a float32 scale for each block of a row.

Codes are equal factors apart, so the error is relative to the element and not to its block. A value between two codes
is rounded to either, in proportion to the distance: nearest rounding would drop every change of less than half a
factor, which is most of what a step changes. Blocks do not span rows, so a rank that holds whole rows has whole
blocks, and any number of ranks restores a checkpoint.
Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861; codes and rounding are
different.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK_ELEMENTS = 256
"""Elements of a row with a common scale."""

_DECADES = {True: 6, False: 12}
"""Powers of ten from the largest value of a block to the smallest that has a code, signed or not: a second moment is a
square. Neighbouring codes are 12 % apart."""


class CodedMoment:
    """One moment of several matrices, by name. `codes` are uint8 in the shape of the matrix, `scales` float32
    `[rows, blocks]`, where rows are those of the first dimension."""

    def __init__(self, masters: Mapping[str, Tensor], *, is_signed: bool) -> None:
        self._is_signed = is_signed
        zero = _values(is_signed=is_signed).tolist().index(0.0)
        self.codes = {
            name: torch.full_like(master, zero, dtype=torch.uint8, memory_format=torch.contiguous_format)
            for name, master in masters.items()
        }
        self.scales = {
            name: torch.zeros(len(master), _blocks(_columns(master)), device=master.device)
            for name, master in masters.items()
        }

    def read(self, name: str, rows: slice) -> Tensor:
        """Returns these rows as float32 `[rows, columns]`."""
        codes = _as_rows(self.codes[name])[rows]
        values = self.codebook(codes.device).decode(codes)
        scales = self.scales[name][rows].repeat_interleave(BLOCK_ELEMENTS, dim=1)
        return values.mul_(scales[:, : values.shape[1]])

    def write(self, name: str, rows: slice, values: Tensor, thresholds: Tensor) -> None:
        """Stores these rows. thresholds: from 0 to below 1; a larger one of an element makes it less likely that it is
        rounded up. They repeat along the elements."""
        count, columns = values.shape
        blocks = pad(values, (0, -columns % BLOCK_ELEMENTS)).view(count, _blocks(columns), BLOCK_ELEMENTS)
        needed = thresholds.repeat(math.ceil(blocks.numel() / len(thresholds)))[: blocks.numel()].view_as(blocks)
        codes, scales = self.codebook(values.device).encode(blocks, needed)
        _as_rows(self.codes[name])[rows] = codes.view(count, -1)[:, :columns]
        self.scales[name][rows] = scales

    def codebook(self, device: torch.device) -> "Codebook":
        return _codebook(self._is_signed, device)


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """Codes of signed or unsigned values on one device, without the scales of blocks."""

    is_signed: bool
    values: Tensor
    """Value of each code as a share of the scale, ascending. float32 `[256]`."""
    first_codes: Tensor
    """By the upper 16 bits of a float32: the lowest code at or above any float with these bits. int32 `[65536]`."""

    def decode(self, codes: Tensor) -> Tensor:
        """Returns the codes' values, float32 in the same shape."""
        return self.values.index_select(0, codes.int().view(-1)).view(codes.shape)

    def encode(self, blocks: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """Returns codes, uint8 in the shape of the blocks, and their scales, float32 `[...]`.

        blocks: float32 `[..., BLOCK_ELEMENTS]`. thresholds: in the same shape, as for `CodedMoment.write`.
        """
        scales = blocks.abs().amax(-1)
        shares = blocks / torch.where(scales > 0, scales, 1.0)[..., None]
        above = self.codes_at_or_above(shares.view(-1))
        below = (above - 1).clamp_(min=0)
        low, high = (self.values.index_select(0, codes).view(shares.shape) for codes in (below, above))
        codes = below.view(shares.shape) + (shares - low > thresholds * (high - low))
        if not self.is_signed:  # a square that became 0 would make its element's next step huge
            codes = torch.where(shares > 0, codes.clamp(min=1), codes)
        return codes.to(torch.uint8), scales

    def codes_at_or_above(self, shares: Tensor) -> Tensor:
        """Returns the lowest code whose value is at least each share, or the last code. int32, as `torch.bucketize`.

        Floats with the same upper 16 bits are at most 0.8 % apart and codes 12 %, so at most one code is between them,
        and one comparison decides. A binary search takes eight times as long on a CPU.
        """
        codes = self.first_codes.index_select(0, (shares.view(torch.int32) >> 16).bitwise_and_(0xFFFF))
        return codes.add_(shares > self.values.index_select(0, codes)).clamp_(max=len(self.values) - 1)


@cache
def _codebook(is_signed: bool, device: torch.device) -> Codebook:
    values = _values(is_signed=is_signed)
    lowest = torch.arange(1 << 16, dtype=torch.int32) << 16
    ends = torch.stack([lowest, lowest | 0xFFFF]).view(torch.float32)
    first_codes = torch.bucketize(ends, values, out_int32=True).amin(0).clamp_(max=len(values) - 1)
    return Codebook(is_signed=is_signed, values=values.to(device), first_codes=first_codes.to(device))


def row_chunks(master: Tensor, *, elements: int) -> Iterator[slice]:
    """Returns slices of rows with about this many elements in each."""
    rows = max(1, elements // _columns(master))
    return (slice(begin, min(begin + rows, len(master))) for begin in range(0, len(master), rows))


def _values(*, is_signed: bool) -> Tensor:
    """Returns the values of the 256 codes as shares of the scale, ascending: 0, and equal factors up to 1."""
    if not is_signed:
        return torch.cat([torch.zeros(1), torch.logspace(-_DECADES[False], 0, 255)])
    negative, positive = torch.logspace(0, -_DECADES[True], 128), torch.logspace(-_DECADES[True], 0, 127)
    return torch.cat([-negative, torch.zeros(1), positive])


def _blocks(columns: int) -> int:
    return math.ceil(columns / BLOCK_ELEMENTS)


def _columns(value: Tensor) -> int:
    return math.prod(value.shape[1:])


def _as_rows(value: Tensor) -> Tensor:
    return value.view(len(value), _columns(value))
