"""Payloads of delta blocks: which elements changed, told band by band, and the steps they made.

    bands | first keys | table | gaps of the changed | gaps of the large steps | their extra units | directions

The steps are in the ordered-integer domain of `ulp`. Most are of one unit; those of more, the *large* ones, are listed
among the changed, with the units beyond two. `bands` says why there are bands, `streams` and `listings` have the codes,
and docs/weight_format.md the layout field by field.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.bands import KEYS, MAX_BANDS, choose_bands
from astraflow.weights.kernels.base import Changes, IndexArray, Kernels
from astraflow.weights.kernels.rice import MAX_LOW_BITS
from astraflow.weights.listings import Entry, groups_of, listing_of, read_chosen, read_entry
from astraflow.weights.streams import Reader, decode_rice, number
from astraflow.weights.tensors import BitArray

MAX_BLOCK_ELEMENTS = 2**21


def encode_block(old: BitArray, new: BitArray, *, bands: int, kernels: Kernels) -> bytes:
    """The payload that turns `old` into `new`, elements of one width, in at most that many bands.

    Empty when nothing changed.
    """
    changes = kernels.changes(old, new)
    if not len(changes.at):
        return b""
    order = kernels.band_order(old, choose_bands(old, changes.keys, changes.extra, limit=bands))
    parts = _payload(order.first_keys, order.starts, kernels.by_rank(changes, order), kernels=kernels)
    return b"".join(parts)


def apply_block(payload: memoryview, bits: BitArray, *, kernels: Kernels) -> IndexArray:
    """Step the elements of a block to their new bits, in place; returns the positions that changed, sorted.

    Allocates at most some 64 bytes for each element of the block, whatever the payload says.
    Raises: CorruptData; `bits` are then as they were.
    """
    reader = Reader(payload)
    order = kernels.band_order(bits, _read_first_keys(reader))
    changed, large, low_bits = _read_table(reader, np.diff(order.starts).tolist())
    ranks = read_chosen(reader, changed, order.starts, kernels=kernels)
    bounds = np.array([0, *accumulate(entry.members for entry in changed)])
    folded = _read_steps(reader, bits.dtype, large, low_bits, bounds, kernels=kernels)
    reader.end()
    return kernels.move(bits, order, ranks, folded)


def _payload(first_keys: Sequence[int], starts: IndexArray, changes: Changes, *, kernels: Kernels) -> list[bytes]:
    """changes: by rank."""
    bounds = np.searchsorted(changes.at, starts)
    at = np.flatnonzero(changes.extra != 0)
    changed, large = listing_of(changes.at, starts, kernels=kernels), listing_of(at, bounds, kernels=kernels)
    extras = groups_of(changes.extra[at] - np.uint32(1), np.diff(np.searchsorted(at, bounds)), kernels=kernels)
    parts = [number(len(first_keys)), *map(number, np.diff(first_keys).tolist())]
    for band, (elements, members) in enumerate(zip(np.diff(starts).tolist(), np.diff(bounds).tolist(), strict=True)):
        if elements:
            parts += changed.entry(band)
        if members:
            parts += large.entry(band)
        if extras.counts[band]:
            parts.append(number(extras.low_bits[band]))
    directions = np.packbits(changes.is_up, bitorder="little").tobytes()
    return [*parts, *changed.gaps.sequence, *large.gaps.sequence, *extras.sequence, directions]


def _read_first_keys(reader: Reader) -> list[int]:
    """The first key of each band, ascending from 0."""
    count = reader.number(most=MAX_BANDS)
    if not count:
        raise CorruptData("a delta block has no bands")
    first_keys = [0]
    for _ in range(count - 1):
        step = reader.number(most=KEYS - 1 - first_keys[-1])
        if not step:
            raise CorruptData("a delta block has a band without keys")
        first_keys.append(first_keys[-1] + step)
    return first_keys


def _read_table(reader: Reader, sizes: list[int]) -> tuple[list[Entry], list[Entry], list[int]]:
    """About each band, of `sizes` elements: the changed, the large steps among them, low bits of their extra units."""
    changed, large, low_bits = [], [], []
    for size in sizes:
        changed.append(read_entry(reader, size=size))
        large.append(read_entry(reader, size=changed[-1].members))
        low_bits.append(reader.number(most=MAX_LOW_BITS) if large[-1].members else 0)
    return changed, large, low_bits


def _read_steps(
    reader: Reader,
    dtype: np.dtype[np.unsignedinteger],
    large: list[Entry],
    low_bits: list[int],
    bounds: IndexArray,
    *,
    kernels: Kernels,
) -> BitArray:
    """The folded steps of the changed elements, in order of their ranks."""
    at = read_chosen(reader, large, bounds, kernels=kernels)
    extras = decode_rice(reader, [entry.members for entry in large], low_bits, kernels=kernels)
    if extras.max(initial=0) >= 2 ** (8 * dtype.itemsize - 1) - 1:
        raise CorruptData("a delta block has a step larger than its elements")
    count = int(bounds[-1])
    folded: BitArray = np.unpackbits(reader.bits(count), count=count, bitorder="little").astype(dtype)
    folded[at] |= (extras + 1).astype(dtype) << dtype.type(1)
    folded += dtype.type(1)
    return folded
