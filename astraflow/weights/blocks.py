"""Payloads of delta blocks: which elements changed, told band by band, and the steps they made.

    bands | first keys | table | gaps of the changed | gaps of the large steps | their extra units | directions

The steps are in the ordered-integer domain of `ulp`. Most are of one unit; those of more, the *large* ones, are listed
among the changed, with the units beyond two. `bands` says why there are bands, `streams` and `listings` have the codes,
and docs/weight_format.md the layout field by field.
"""

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import CorruptData
from astraflow.weights.bands import KEYS, MAX_BANDS, BandOrder, choose_bands, differing, keys_of, positions_in
from astraflow.weights.listings import Entry, groups_of, listing_of, read_chosen, read_entry
from astraflow.weights.streams import MAX_LOW_BITS, ByteArray, Reader, ValueArray, decode_rice, number, packed
from astraflow.weights.tensors import BitArray
from astraflow.weights.ulp import take_steps, zigzag_steps

MAX_BLOCK_ELEMENTS = 2**21

IndexArray = npt.NDArray[np.int64]


def encode_block(old: BitArray, new: BitArray, *, bands: int) -> bytes:
    """The payload that turns `old` into `new`, elements of one width, in at most that many bands.

    Empty when nothing changed.
    """
    changed = positions_in(differing(old, new))
    if not len(changed):
        return b""
    before = old[changed]
    folded = zigzag_steps(before, new[changed])
    folded -= folded.dtype.type(1)
    extra = np.right_shift(folded, folded.dtype.type(1)).astype(np.uint32)
    is_up = folded.astype(np.uint8) & np.uint8(1)
    first_keys = choose_bands(old, before, extra, limit=bands)
    order = BandOrder(old, first_keys)
    if len(first_keys) > 1:
        band = np.repeat(np.arange(len(first_keys), dtype=np.uint8), np.diff([*first_keys, KEYS]))[keys_of(before)]
        sequence = np.argsort(band, kind="stable")
        changed, extra, is_up = order.ranks(changed, band)[sequence], extra[sequence], is_up[sequence]
    return _payload(first_keys, order.starts, changed, extra, is_up)


def apply_block(payload: memoryview, bits: BitArray) -> IndexArray:
    """Step the elements of a block to their new bits, in place; returns the positions that changed, sorted.

    Allocates at most some 64 bytes for each element of the block, whatever the payload says.
    Raises: CorruptData; `bits` are then as they were.
    """
    reader = Reader(payload)
    first_keys = _read_first_keys(reader)
    order = BandOrder(bits, first_keys)
    changed, large, low_bits = _read_table(reader, np.diff(order.starts).tolist())
    ranks = read_chosen(reader, changed, order.starts)
    bounds = np.array([0, *accumulate(entry.members for entry in changed)])
    folded = _read_steps(reader, bits.dtype, large, low_bits, bounds)
    reader.end()
    positions = order.positions(ranks)
    bits[positions] = take_steps(bits[positions], folded)
    return positions if len(first_keys) == 1 else np.sort(positions)


def _payload(
    first_keys: list[int], starts: IndexArray, ranks: IndexArray, extra: ValueArray, is_up: ByteArray
) -> bytes:
    """ranks: of the changed elements, sorted; extra: units that they moved beyond one; is_up: 1 where they grew."""
    bounds = np.searchsorted(ranks, starts)
    at = np.flatnonzero(extra != 0)
    changed, large = listing_of(ranks, starts), listing_of(at, bounds)
    extras = groups_of(extra[at] - np.uint32(1), np.diff(np.searchsorted(at, bounds)))
    parts = [number(len(first_keys)), *map(number, np.diff(first_keys).tolist())]
    for band, (elements, members) in enumerate(zip(np.diff(starts).tolist(), np.diff(bounds).tolist(), strict=True)):
        if elements:
            parts += changed.entry(band)
        if members:
            parts += large.entry(band)
        if extras.counts[band]:
            parts.append(number(extras.low_bits[band]))
    return b"".join([*parts, *changed.gaps.encode(), *large.gaps.encode(), *extras.encode(), packed([is_up])])


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
    reader: Reader, dtype: np.dtype[np.unsignedinteger], large: list[Entry], low_bits: list[int], bounds: IndexArray
) -> BitArray:
    """The folded steps of the changed elements, in order of their ranks."""
    at = read_chosen(reader, large, bounds)
    extras = decode_rice(reader, [entry.members for entry in large], low_bits)
    if extras.max(initial=0) >= 2 ** (8 * dtype.itemsize - 1) - 1:
        raise CorruptData("a delta block has a step larger than its elements")
    count = int(bounds[-1])
    folded: BitArray = reader.bits(count).take(count).astype(dtype)
    folded[at] |= (extras + 1).astype(dtype) << dtype.type(1)
    folded += dtype.type(1)
    return folded
