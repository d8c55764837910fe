"""Payloads of delta blocks: which elements changed, told band by band, and the steps they made.

    bands | first keys | table | gaps of the changed | gaps of the large steps | their extra units | directions

The steps are in the ordered-integer domain of `ulp`. Most are of one unit; those of more, the *large* ones, are listed
among the changed, with the units beyond two. `bands` says why there are bands, `streams` has the codes, `kernels` what
is done to elements, and docs/weight_format.md the layout field by field.
"""

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.bands import KEYS, MAX_BANDS, choose_bands
from astraflow.weights.kernels.base import Coded, Entry, IndexArray, Kernels, Listing, Table
from astraflow.weights.kernels.rice import MAX_LOW_BITS
from astraflow.weights.streams import Reader, number
from astraflow.weights.tensors import BitArray

MAX_BLOCK_ELEMENTS = 2**21


def encode_block(old: BitArray, new: BitArray, *, bands: int, kernels: Kernels) -> tuple[bytes, int]:
    """The payload that turns `old` into `new`, elements of one width, in at most that many bands.

    Empty when nothing changed. Beside it, how many elements did.
    """
    changes = kernels.changes(old, new)
    if not len(changes.at):
        return b"", 0
    first_keys = choose_bands(old, changes.keys, changes.extra, limit=bands)
    coded = kernels.coded(old, first_keys, changes)
    sequences = (coded.changed.gaps.sequence, coded.large.gaps.sequence, coded.extras.sequence, coded.directions)
    steps = np.diff(first_keys).tolist()
    payload = b"".join([number(len(first_keys)), *map(number, steps), *_table(coded), *sequences])
    return payload, len(changes.at)


def apply_block(payload: memoryview, bits: BitArray, *, kernels: Kernels) -> IndexArray:
    """Step the elements of a block to their new bits, in place; returns the positions that changed, sorted.

    Allocates at most some 64 bytes for each element of the block, whatever the payload says.
    Raises: CorruptData; `bits` are then as they were.
    """
    reader = Reader(payload)
    first_keys = _read_first_keys(reader)
    if len(first_keys) > 1 and not len(bits):
        raise CorruptData("a delta block without elements has several bands")
    order = kernels.band_order(bits, first_keys)
    table = _read_table(reader, np.diff(order.starts).tolist())
    return kernels.apply(bits, order, table, reader.rest())


def _table(coded: Coded) -> list[bytes]:
    parts = []
    for band, (elements, members) in enumerate(zip(coded.elements, coded.members, strict=True)):
        if elements:
            parts += _entry(coded.changed, band)
        if members:
            parts += _entry(coded.large, band)
        if coded.extras.counts[band]:
            parts.append(number(coded.extras.low_bits[band]))
    return parts


def _entry(listing: Listing, band: int) -> list[bytes]:
    """What the table says about one band that has members."""
    listed = listing.gaps.counts[band]
    entry = [number(2 * listed + listing.is_inverted[band])]
    return [*entry, number(listing.gaps.low_bits[band])] if listed else entry


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


def _read_table(reader: Reader, sizes: list[int]) -> Table:
    """About bands of `sizes` elements."""
    changed, large, low_bits = [], [], []
    for size in sizes:
        changed.append(_read_entry(reader, size=size))
        large.append(_read_entry(reader, size=changed[-1].members))
        low_bits.append(reader.number(most=MAX_LOW_BITS) if large[-1].members else 0)
    return Table(changed=changed, large=large, low_bits=low_bits)


def _read_entry(reader: Reader, *, size: int) -> Entry:
    """About a band, or its changed elements, of that many members; about an empty one the table says nothing."""
    listed, is_inverted = divmod(reader.number(most=2 * size + 1), 2) if size else (0, 0)
    low_bits = reader.number(most=MAX_LOW_BITS) if listed else 0
    members = size - listed if is_inverted else listed
    return Entry(listed=listed, is_inverted=bool(is_inverted), low_bits=low_bits, members=members)
