"""Bit-exact deltas between two versions of the same layout, block by block.

An encoded delta, little-endian: a head

    magic "AFDELTA2" | base root hash 32 | target root hash 32 | buffer bytes u64 | blocks u32 | 0 u32
    | xxh3 of the above u64

then blocks in ascending order, each

    level u8 | element width u8 | 0 u16 | elements u32 | offset u64 (bytes in the buffer) | payload bytes u32 | 0 u32
    | xxh3 of the above and the payload u64 | payload

Ranges without a block did not change. Level 0 (`raw`) holds the new bits; higher levels hold the steps from the old
bits (`blocks`). Blocks depend only on their own range, so they are coded, checked and applied in parallel.
docs/reference/weight-format.md has the full format.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.weights import Manifest
from astraflow.weights.codec.bands import MAX_BANDS
from astraflow.weights.codec.blocks import MAX_BLOCK_ELEMENTS, apply_block, encode_block
from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.codec.kernels.selection import kernels_for
from astraflow.weights.tensors import BITS, HASH_BYTES, BitArray, Buffer, has_same_layout, width_regions

BLOCK_ELEMENTS = MAX_BLOCK_ELEMENTS
"""Elements of a block: enough to make the fixed cost per block negligible."""

_MAGIC = b"AFDELTA2"
_HEAD = struct.Struct(f"<8s{HASH_BYTES}s{HASH_BYTES}sQII")
_BLOCK = struct.Struct("<BBHIQII")
_CHECKSUM = struct.Struct("<Q")

Item = TypeVar("Item")
Result = TypeVar("Result")


class Level(IntEnum):
    """Coding of a block."""

    RAW = 0
    """The new bits."""
    FAST = 1
    """Steps of the changed elements, in few bands."""
    DENSE = 2
    """Steps in as many bands as pay off: smaller, and slower."""


MAX_BANDS_BY_LEVEL = {Level.FAST: 2, Level.DENSE: MAX_BANDS}
"""Largest number of bands in a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaHead:
    """Head of a delta: base, target and sizes."""

    base_root: bytes
    target_root: bytes
    size_bytes: int
    """Size of the flat buffer that the delta applies to. Bytes."""
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """An encoded delta."""

    data: bytes
    changed_elements: int
    """Elements whose bits differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Result of applying one block: sorted int64 positions that changed, in elements from the start of the block."""

    offset: int
    """Offset of the block in the buffer. Bytes."""
    width: int
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    level: int
    width: int
    elements: int
    offset: int
    payload: memoryview


def encode_delta(
    base: Manifest,
    old: Buffer,
    target: Manifest,
    new: Buffer,
    *,
    level: Level = Level.FAST,
    workers: int = 1,
    block_elements: int = BLOCK_ELEMENTS,
    kernels: Kernels | None = None,
) -> Delta:
    """Returns the delta from `old` to `new`, with raw blocks where that is smaller.

    kernels: default chosen by size; the bytes are the same with any.
    Raises: InvalidInput when the two versions do not have the same layout.
    """
    if not has_same_layout(base, target):
        raise InvalidInput(
            f"cannot encode a delta from version {base.version} to {target.version}: their tensors differ; send a full "
            "snapshot",
            code="weights.layout_differs",
        )
    pieces = _element_blocks(target, old, new, block_elements=block_elements)
    kernels = kernels or kernels_for(target.size_bytes)
    coded = list(_map_in_threads(lambda piece: _encode(*piece, level=level, kernels=kernels), pieces, workers=workers))
    blocks = [block for block, _ in coded if block]
    head = _HEAD.pack(_MAGIC, base.root_hash, target.root_hash, target.size_bytes, len(blocks), 0)
    data = b"".join([head, _CHECKSUM.pack(xxh3_64_intdigest(head)), *blocks])
    return Delta(data=data, changed_elements=sum(changed for _, changed in coded))


def read_head(data: bytes | memoryview) -> DeltaHead:
    """Reads the head of an encoded delta. Raises: CorruptData."""
    view = memoryview(data)
    if len(view) < _HEAD.size + _CHECKSUM.size:
        raise CorruptData(
            "cannot read a delta: it ends inside its head; fetch it again", code="weights.malformed_delta"
        )
    magic, base_root, target_root, size_bytes, blocks, _ = _HEAD.unpack_from(view)
    if magic != _MAGIC or _CHECKSUM.unpack_from(view, _HEAD.size)[0] != xxh3_64_intdigest(view[: _HEAD.size]):
        raise CorruptData(
            "cannot read a delta: its head is damaged or of an unknown format; fetch it again, or use the same release "
            "on both sides",
            code="weights.malformed_delta",
        )
    return DeltaHead(base_root=base_root, target_root=target_root, size_bytes=size_bytes, blocks=blocks)


def apply_delta(
    data: bytes | memoryview, target: Manifest, buffer: Buffer, *, workers: int = 1, kernels: Kernels | None = None
) -> tuple[Patch, ...]:
    """Turns `buffer`, in place, from the delta's base into its target; returns the changes, in order.

    target: any manifest with the buffer's layout. The delta only proves that it arrived intact; `tensors.verify` proves
    that the result is correct. Raises: CorruptData; `buffer` may then be changed in part.
    """
    head = read_head(data)
    if head.size_bytes != buffer.nbytes or target.size_bytes != buffer.nbytes:
        raise CorruptData(
            f"cannot apply a delta for {head.size_bytes} bytes: the buffer has {buffer.nbytes}; plan the transfer "
            "again",
            code="weights.size_mismatch",
        )
    blocks = list(_split_blocks(memoryview(data)[_HEAD.size + _CHECKSUM.size :], count=head.blocks))
    _check_ranges(blocks, target)
    kernels = kernels or kernels_for(target.size_bytes)
    return tuple(_map_in_threads(lambda block: _apply(block, buffer, kernels=kernels), blocks, workers=workers))


def _element_blocks(
    target: Manifest, old: Buffer, new: Buffer, *, block_elements: int
) -> Iterator[tuple[int, BitArray, BitArray]]:
    for region in width_regions(target):
        before, after = region.bits(old), region.bits(new)
        for start in range(0, region.elements, block_elements):
            chosen = slice(start, start + block_elements)
            yield region.offset + start * region.width, before[chosen], after[chosen]


def _encode(offset: int, old: BitArray, new: BitArray, *, level: Level, kernels: Kernels) -> tuple[bytes, int]:
    """Returns the encoded block, empty when nothing changed, and the number of changed elements."""
    payload, changed = encode_block(old, new, bands=MAX_BANDS_BY_LEVEL[level], kernels=kernels)
    if not payload:
        return b"", 0
    if len(payload) >= new.nbytes:
        payload, level = new.tobytes(), Level.RAW
    head = _BLOCK.pack(level, new.itemsize, 0, len(new), offset, len(payload), 0)
    return b"".join([head, _CHECKSUM.pack(_block_checksum(head, payload)), payload]), changed


def _split_blocks(rest: memoryview, *, count: int) -> Iterator[_Block]:
    """Splits the data into blocks; payloads stay views. Raises: CorruptData."""
    for _ in range(count):
        if len(rest) < _BLOCK.size + _CHECKSUM.size:
            raise CorruptData(
                "cannot read a delta: it ends inside a block's head; fetch it again", code="weights.malformed_delta"
            )
        head = rest[: _BLOCK.size]
        level, width, _, elements, offset, payload_bytes, _ = _BLOCK.unpack(head)
        (checksum,) = _CHECKSUM.unpack_from(rest, _BLOCK.size)
        payload = rest[_BLOCK.size + _CHECKSUM.size :][:payload_bytes]
        if len(payload) != payload_bytes or checksum != _block_checksum(head, payload):
            raise CorruptData(
                f"cannot apply the delta block at offset {offset}: it does not match its checksum; fetch it again",
                code="weights.checksum_mismatch",
            )
        yield _Block(level=level, width=width, elements=elements, offset=offset, payload=payload)
        rest = rest[_BLOCK.size + _CHECKSUM.size + payload_bytes :]
    if len(rest):
        raise CorruptData(
            f"cannot read a delta: {len(rest)} bytes follow its last block; fetch it again",
            code="weights.malformed_delta",
        )


def _block_checksum(head: bytes | memoryview, payload: bytes | memoryview) -> int:
    return xxh3_64_intdigest(payload, seed=xxh3_64_intdigest(head))


def _check_ranges(blocks: Iterable[_Block], target: Manifest) -> None:
    """Checks that each block lies inside a region of its width, on element boundaries, after the previous one."""
    by_width = {region.width: region for region in width_regions(target)}
    end = 0
    for block in blocks:
        region = by_width.get(block.width)
        if region is None or not 0 < block.elements <= MAX_BLOCK_ELEMENTS:
            raise CorruptData(
                f"cannot apply a delta block of {block.elements} elements of {block.width} bytes: no tensor has room "
                "for it; fetch it again",
                code="weights.malformed_delta",
            )
        first, odd = divmod(block.offset - region.offset, region.width)
        if odd or first < 0 or first + block.elements > region.elements or block.offset < end:
            raise CorruptData(
                f"cannot apply the delta block at offset {block.offset}: it overlaps another block or exceeds its "
                "tensors; fetch it again",
                code="weights.malformed_delta",
            )
        end = block.offset + block.elements * block.width


def _apply(block: _Block, buffer: Buffer, *, kernels: Kernels) -> Patch:
    bits = buffer[block.offset : block.offset + block.elements * block.width].view(BITS[block.width])
    match block.level:
        case Level.FAST | Level.DENSE:
            positions = apply_block(block.payload, bits, kernels=kernels)
        case Level.RAW:
            positions = _apply_raw(block.payload, bits)
        case _:
            raise CorruptData(
                f"cannot apply a delta block: level {block.level} is unknown to this release; use the same release on "
                "both sides",
                code="weights.unknown_level",
            )
    return Patch(offset=block.offset, width=block.width, positions=positions)


def _apply_raw(payload: memoryview, bits: BitArray) -> npt.NDArray[np.int64]:
    if len(payload) != bits.nbytes:
        raise CorruptData(
            f"cannot apply a raw delta block: it has {len(payload)} bytes instead of {bits.nbytes}; fetch it again",
            code="weights.malformed_delta",
        )
    new = np.frombuffer(payload, dtype=bits.dtype)
    changed = np.flatnonzero(bits != new)
    bits[:] = new
    return changed


def _map_in_threads(work: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Iterable[Result]:
    """Applies `work` to the items in order, on several threads when `workers` is more than 1."""
    if workers == 1:
        return map(work, items)
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))
