"""Payloads of delta blocks: the changed elements, band by band, and their steps.

    bands | first keys | table | gaps of the changed | gaps of the large steps | their extra units | directions

Steps are in the ordered-integer domain of `ulp`. Most are of one unit; the *large* ones are listed among the changed,
with their units beyond two. Module `bands` explains bands, `kernels.rice` the codes, `kernels` the loops over elements,
and docs/reference/weight-format.md the layout field by field.
"""

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.codec.bands import KEYS, MAX_BANDS, choose_bands
from astraflow.weights.codec.kernels.base import (
    MAX_LOW_BITS,
    BandEntry,
    BandTable,
    EncodedChanges,
    IndexArray,
    Kernels,
    MemberList,
)
from astraflow.weights.codec.payload_codec import PayloadReader, encode_varint
from astraflow.weights.tensors import BitArray

MAX_BLOCK_ELEMENTS = 2**21


def encode_block(old: BitArray, new: BitArray, *, bands: int, kernels: Kernels) -> tuple[bytes, int]:
    """Returns the payload that turns `old` into `new`, elements of one width, and the number of changed elements.

    Uses at most `bands` bands. The payload is empty when nothing changed.
    """
    changes = kernels.find_changes(old, new)
    if not len(changes.positions):
        return b"", 0
    first_keys = choose_bands(old, changes.keys, changes.extra_units, limit=bands)
    coded = kernels.encode_changes(old, first_keys, changes)
    sequences = (coded.changed.gaps.sequence, coded.large.gaps.sequence, coded.extras.sequence, coded.directions)
    steps = np.diff(first_keys).tolist()
    payload = b"".join([encode_varint(len(first_keys)), *map(encode_varint, steps), *_encode_table(coded), *sequences])
    return payload, len(changes.positions)


def apply_block(payload: memoryview, bits: BitArray, *, kernels: Kernels) -> IndexArray:
    """Applies a payload to a block in place; returns the positions that changed, sorted.

    Allocates at most about 64 bytes for each element of the block, for any payload.
    Raises: CorruptData; `bits` are then unchanged.
    """
    reader = PayloadReader(payload)
    first_keys = _read_first_keys(reader)
    if len(first_keys) > 1 and not len(bits):
        raise CorruptData(
            "cannot apply a delta block: it has bands but no elements; fetch it again", code="weights.malformed_delta"
        )
    order = kernels.band_order(bits, first_keys)
    table = _read_table(reader, np.diff(order.starts).tolist())
    return kernels.apply(bits, order, table, reader.remaining())


def _encode_table(coded: EncodedChanges) -> list[bytes]:
    parts = []
    for band, (elements, members) in enumerate(zip(coded.elements, coded.members, strict=True)):
        if elements:
            parts += _encode_entry(coded.changed, band)
        if members:
            parts += _encode_entry(coded.large, band)
        if coded.extras.counts[band]:
            parts.append(encode_varint(coded.extras.low_bits[band]))
    return parts


def _encode_entry(listing: MemberList, band: int) -> list[bytes]:
    """Returns the table entry of one band that has members."""
    listed = listing.gaps.counts[band]
    entry = [encode_varint(2 * listed + listing.is_inverted[band])]
    return [*entry, encode_varint(listing.gaps.low_bits[band])] if listed else entry


def _read_first_keys(reader: PayloadReader) -> list[int]:
    """Reads the first key of each band, ascending from 0."""
    count = reader.read_varint(max_value=MAX_BANDS)
    if not count:
        raise CorruptData("cannot apply a delta block: it has no bands; fetch it again", code="weights.malformed_delta")
    first_keys = [0]
    for _ in range(count - 1):
        step = reader.read_varint(max_value=KEYS - 1 - first_keys[-1])
        if not step:
            raise CorruptData(
                "cannot apply a delta block: it has a band without keys; fetch it again", code="weights.malformed_delta"
            )
        first_keys.append(first_keys[-1] + step)
    return first_keys


def _read_table(reader: PayloadReader, sizes: list[int]) -> BandTable:
    """Reads the table of bands with `sizes` elements."""
    changed, large, low_bits = [], [], []
    for size in sizes:
        changed.append(_read_entry(reader, size=size))
        large.append(_read_entry(reader, size=changed[-1].members))
        low_bits.append(reader.read_varint(max_value=MAX_LOW_BITS) if large[-1].members else 0)
    return BandTable(changed=changed, large=large, low_bits=low_bits)


def _read_entry(reader: PayloadReader, *, size: int) -> BandEntry:
    """Reads the entry of a band, or of its changed elements, with `size` members; an empty one has no entry."""
    listed, is_inverted = divmod(reader.read_varint(max_value=2 * size + 1), 2) if size else (0, 0)
    low_bits = reader.read_varint(max_value=MAX_LOW_BITS) if listed else 0
    members = size - listed if is_inverted else listed
    return BandEntry(listed=listed, is_inverted=bool(is_inverted), low_bits=low_bits, members=members)
