"""The `fast` level of the delta codec: where elements changed, and by how many ULPs, in byte streams under zstd.

A block is up to `MAX_BLOCK_ELEMENTS` elements of one width. Its payload, little-endian:

    positions coding u8 | step planes u8 | 0 u16 | changed u32 | streams: (size u32, stored size u32, bytes)...

Streams in order: positions (none when every element changed), for wide gaps their low bytes, then the byte planes of
the steps (zigzag, less one, since a listed element has changed), least significant first. A stream whose stored size is
below its size is zstd, else it is plain.

Positions are a bitmap, or the gaps between changed elements in base 255: a gap g is `g // 255` bytes of 255 and one
byte `g % 255`. Wide gaps keep their low byte apart and code the rest that way. It all decodes by cumulative sums.
"""

import struct
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from astraflow.contract.errors import CorruptData
from astraflow.weights.tensors import BitArray
from astraflow.weights.ulp import from_planes, planes, take_steps, zigzag_steps

MAX_BLOCK_ELEMENTS = 2**22
ZSTD_LEVEL = 1
BITMAP_FROM_DENSITY = 0.25
"""From this share of changed elements on, a bitmap is smaller than gaps and faster."""
WIDE_GAPS_BELOW_DENSITY = 1 / 640
"""Below this share, most gaps need more than one byte."""

ByteArray: TypeAlias = npt.NDArray[np.uint8]
IndexArray: TypeAlias = npt.NDArray[np.int64]

_HEAD = struct.Struct("<BBHI")
_STREAM = struct.Struct("<II")
_ESCAPE = 255


class Positions(IntEnum):
    """How a block says which of its elements changed."""

    ALL = 0
    BITMAP = 1
    GAPS = 2
    WIDE_GAPS = 3


def encode_block(old: BitArray, new: BitArray) -> bytes:
    """The payload that turns `old` into `new`, elements of one width; empty when nothing changed."""
    is_changed = old != new
    changed = np.flatnonzero(is_changed)
    if not len(changed):
        return b""
    coding = _choose(changed=len(changed), elements=len(old))
    steps = zigzag_steps(old, new) if coding is Positions.ALL else zigzag_steps(old[changed], new[changed])
    steps -= steps.dtype.type(1)
    step_planes = planes(steps)
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    parts = [_HEAD.pack(coding, len(step_planes), 0, len(changed))]
    for stream in (*_position_streams(coding, is_changed, changed), *step_planes):
        packed = compressor.compress(stream.data)
        stored = packed if len(packed) < len(stream) else stream.tobytes()
        parts += [_STREAM.pack(len(stream), len(stored)), stored]
    return b"".join(parts)


def apply_block(payload: memoryview, bits: BitArray) -> IndexArray:
    """Step the elements of a block to their new bits, in place; returns the positions that changed, sorted.

    Allocates no more than a few times the block, whatever the payload says. Raises: CorruptData; `bits` are then as
    they were.
    """
    if len(payload) < _HEAD.size:
        raise CorruptData("a delta block ends inside its head")
    coding, plane_count, _, count = _HEAD.unpack_from(payload)
    if not 0 < count <= len(bits) or plane_count > bits.itemsize:
        raise CorruptData(f"a delta block claims {count} changes in {plane_count} planes for {len(bits)} elements")
    streams = _Streams(payload[_HEAD.size :])
    changed = _positions(coding, streams, count=count, elements=len(bits))
    steps = from_planes([streams.take(count) for _ in range(plane_count)], width=bits.itemsize, count=count)
    streams.end()
    steps += steps.dtype.type(1)
    if coding == Positions.ALL:
        bits[:] = take_steps(bits, steps)
    else:
        bits[changed] = take_steps(bits[changed], steps)
    return changed


def _choose(*, changed: int, elements: int) -> Positions:
    density = changed / elements
    if changed == elements:
        return Positions.ALL
    if density >= BITMAP_FROM_DENSITY:
        return Positions.BITMAP
    return Positions.GAPS if density >= WIDE_GAPS_BELOW_DENSITY else Positions.WIDE_GAPS


def _position_streams(coding: Positions, is_changed: npt.NDArray[np.bool_], changed: IndexArray) -> list[ByteArray]:
    match coding:
        case Positions.ALL:
            return []
        case Positions.BITMAP:
            return [np.packbits(is_changed, bitorder="little")]
    gaps = np.diff(changed, prepend=-1)
    gaps -= 1
    if coding is Positions.GAPS:
        return [_in_base_255(gaps)]
    return [_in_base_255(gaps >> 8), gaps.astype(np.uint8)]


def _in_base_255(values: IndexArray) -> ByteArray:
    ends = np.cumsum(values // _ESCAPE + 1)
    coded = np.full(ends[-1], _ESCAPE, dtype=np.uint8)
    coded[ends - 1] = values % _ESCAPE
    return coded


def _positions(coding: int, streams: "_Streams", *, count: int, elements: int) -> IndexArray:
    match coding:
        case Positions.ALL if count == elements:
            return np.arange(elements)
        case Positions.BITMAP:
            changed = _from_bitmap(streams.take((elements + 7) // 8), elements=elements)
        case Positions.GAPS:
            gaps = _from_base_255(streams.take_up_to(count + elements // _ESCAPE), count=count)
            changed = np.cumsum(gaps + 1) - 1
        case Positions.WIDE_GAPS:
            high = _from_base_255(streams.take_up_to(count + elements // 256 // _ESCAPE), count=count)
            changed = np.cumsum(high * 256 + streams.take(count) + 1) - 1
        case _:
            raise CorruptData(f"a delta block has positions coding {coding} for {count} of {elements} elements")
    if len(changed) != count or changed[-1] >= elements:
        raise CorruptData(f"a delta block's positions do not fit: {len(changed)} up to {changed[-1:]} of {elements}")
    return changed


def _from_bitmap(packed: ByteArray, *, elements: int) -> IndexArray:
    return np.flatnonzero(np.unpackbits(packed, count=elements, bitorder="little").view(np.bool_))


def _from_base_255(coded: ByteArray, *, count: int) -> IndexArray:
    ends = np.flatnonzero(coded != _ESCAPE)
    if len(ends) != count or not len(coded) or coded[-1] == _ESCAPE:
        raise CorruptData(f"a delta block has {len(ends)} gaps for {count} changes")
    totals = np.cumsum(coded, dtype=np.int64)[ends]
    return np.diff(totals, prepend=0)


class _Streams:
    """Reads the streams of a payload one after another, believing no size before it is bounded."""

    def __init__(self, data: memoryview) -> None:
        self._rest = data
        self._decompressor = zstandard.ZstdDecompressor()

    def take(self, size_bytes: int) -> ByteArray:
        """The next stream, which must decode to that size."""
        stream = self.take_up_to(size_bytes)
        if len(stream) != size_bytes:
            raise CorruptData(f"a stream of a delta block has {len(stream)} bytes, expected {size_bytes}")
        return stream

    def take_up_to(self, limit_bytes: int) -> ByteArray:
        """The next stream, which must not decode to more."""
        if len(self._rest) < _STREAM.size:
            raise CorruptData("a delta block ends inside a stream's head")
        size, stored_size = _STREAM.unpack_from(self._rest)
        stored = self._rest[_STREAM.size : _STREAM.size + stored_size]
        if size > limit_bytes or stored_size > size or len(stored) != stored_size:
            raise CorruptData(f"a stream of a delta block claims {size} bytes in {stored_size}")
        self._rest = self._rest[_STREAM.size + stored_size :]
        return np.frombuffer(stored if stored_size == size else self._unpacked(stored, size), dtype=np.uint8)

    def end(self) -> None:
        """Raises: CorruptData when something is left."""
        if len(self._rest):
            raise CorruptData(f"{len(self._rest)} bytes follow the last stream of a delta block")

    def _unpacked(self, stored: memoryview, size: int) -> bytes:
        try:
            if zstandard.frame_content_size(stored) != size:
                raise CorruptData("a stream of a delta block names another size inside")
            return self._decompressor.decompress(stored, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as problem:
            raise CorruptData(f"a stream of a delta block does not decompress: {problem}") from problem
