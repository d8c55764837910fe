"""Dithered start: initial float32 masters are spread over the values that round to the stored weights.

A model that was stored in bfloat16 begins with masters exactly on the grid of published values. A step of the optimizer
is much smaller than half a grid step, so that at first the masters move and the published weights do not
(docs/explanation/dead-zone.md). An offset that is uniform over the cell of each element makes the drift at which the
element changes uniform too, so that published weights follow the masters on average from the first step.
"""

import math

import torch
from blake3 import blake3
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # used by torch's own checkpoints

from astraflow.trainer.engines.moment_codes import row_chunks
from astraflow.trainer.engines.update_rules import chunk_elements

_FACTORS = (0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64)
"""Odd factors of the hash of a position, as signed integers of 64 bits. (SplitMix64)"""


@torch.no_grad()
def dither(masters: Tensor, name: str, *, whole: Tensor, grid: torch.dtype) -> None:
    """Adds a fixed offset to each float32 element that `grid` can represent; rounding to `grid` gives it back.

    masters: this rank's part of the parameter `whole`. The offset depends on the name and on the position in the whole
    tensor, so that any division over ranks gives the same values. Zeros, infinities and subnormal numbers of `grid`,
    which are closer together than any step, stay.
    """
    limits = torch.finfo(grid)
    free_bits = round(math.log2(limits.eps / torch.finfo(torch.float32).eps))
    if not free_bits or not masters.numel():
        return
    seed = int.from_bytes(blake3(name.encode()).digest(8), "little", signed=True)
    values, (rows, columns) = masters.view(masters.shape or (1,)), _positions(whole, masters.device)
    for part in row_chunks(values, elements=chunk_elements(masters.device)):
        hashes = (rows[part] + columns).mul_(_FACTORS[0]).add_(seed)
        hashes.bitwise_xor_(hashes >> 32).mul_(_FACTORS[1])
        # Counted in the last bits, all zero on the grid, a cell has the same width on both sides of its value, also at
        # powers of two, below which it is half as wide. At half the width, a tie, rounding can go to the neighbour.
        offsets = (hashes >> (64 - free_bits)).clamp_(min=1 - 2 ** (free_bits - 1)).int()
        bits, sizes = values[part].view(torch.int32), values[part].abs()
        is_moved = (bits % 2**free_bits == 0) & (sizes >= limits.smallest_normal) & (sizes <= limits.max)
        bits.add_(offsets.mul_(is_moved))


def _positions(whole: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the positions in the whole flat tensor at which the rows of this rank begin, and those of the elements of
    a row from there; int64, to be added to each other."""
    sizes, offsets = tuple(whole.shape), (0,) * whole.ndim
    if isinstance(whole, DTensor):
        sizes, offsets = compute_local_shape_and_global_offset(whole.shape, whole.device_mesh, whole.placements)
    columns = torch.zeros((), dtype=torch.int64, device=device)
    for offset, size, width in zip(offsets[1:], sizes[1:], whole.shape[1:], strict=True):
        columns = columns.unsqueeze(-1) * width + torch.arange(offset, offset + size, device=device)
    first, count = (offsets[0], sizes[0]) if sizes else (0, 1)
    rows = torch.arange(first, first + count, device=device) * math.prod(whole.shape[1:])
    return rows.view(-1, *(1 for _ in sizes[1:])), columns
