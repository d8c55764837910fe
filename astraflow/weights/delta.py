"""Bit-exact deltas between two versions of the same layout, block by block.

An encoded delta, little-endian: a head

    magic "AFDELTA2" | base root hash 32 | target root hash 32 | buffer bytes u64 | blocks u32 | 0 u32
    | xxh3 of the above u64

then blocks in ascending order, each

    level u8 | element width u8 | 0 u16 | elements u32 | offset u64 (bytes in the buffer) | payload bytes u32 | 0 u32
    | xxh3 of the above and the payload u64 | payload

Ranges without a block did not change. Level 0 (`raw`) holds the new bits themselves; higher levels say how to get there
from the old ones (`blocks`). Blocks depend on nothing but their own range, so they are coded, checked and applied in
parallel. docs/weight_format.md has the format in full.
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
from astraflow.weights.bands import MAX_BANDS
from astraflow.weights.blocks import MAX_BLOCK_ELEMENTS, apply_block, encode_block
from astraflow.weights.kernels.base import Kernels
from astraflow.weights.kernels.choice import kernels_for
from astraflow.weights.tensors import BITS, HASH_BYTES, BitArray, Buffer, has_same_layout, runs

BLOCK_ELEMENTS = MAX_BLOCK_ELEMENTS
"""Elements of a block: enough of them for what does not depend on their number to be little."""

_MAGIC = b"AFDELTA2"
_HEAD = struct.Struct(f"<8s{HASH_BYTES}s{HASH_BYTES}sQII")
_BLOCK = struct.Struct("<BBHIQII")
_CHECKSUM = struct.Struct("<Q")

Item = TypeVar("Item")
Result = TypeVar("Result")


class Level(IntEnum):
    """How a block is coded."""

    RAW = 0
    """The new bits themselves."""
    FAST = 1
    """Steps of the changed elements, in few bands."""
    DENSE = 2
    """The same in as many bands as pay: smaller, and slower."""


BANDS = {Level.FAST: 2, Level.DENSE: MAX_BANDS}
"""How many bands of magnitudes a block is told apart in, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaHead:
    """What a delta leads from and to."""

    base_root: bytes
    target_root: bytes
    size_bytes: int
    """Of the flat buffer it applies to."""
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A delta as it travels."""

    data: bytes
    changed_elements: int
    """Whose bits differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What applying one block changed: sorted int64 positions, counted in elements from the start of the block."""

    offset: int
    """Bytes in the buffer."""
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
    """The delta from `old` to `new`, with raw blocks where that is smaller.

    kernels: those that suit the size, unless given; the bytes are the same with any.
    Raises: InvalidInput when the two versions do not have the same layout.
    """
    if not has_same_layout(base, target):
        raise InvalidInput(f"no delta leads from version {base.version} to {target.version}: their tensors differ")
    pieces = _pieces(target, old, new, block_elements=block_elements)
    kernels = kernels or kernels_for(target.size_bytes)
    coded = list(_spread(lambda piece: _encode(*piece, level=level, kernels=kernels), pieces, workers=workers))
    blocks = [block for block, _ in coded if block]
    head = _HEAD.pack(_MAGIC, base.root_hash, target.root_hash, target.size_bytes, len(blocks), 0)
    data = b"".join([head, _CHECKSUM.pack(xxh3_64_intdigest(head)), *blocks])
    return Delta(data=data, changed_elements=sum(changed for _, changed in coded))


def read_head(data: bytes | memoryview) -> DeltaHead:
    """The head of an encoded delta. Raises: CorruptData."""
    view = memoryview(data)
    if len(view) < _HEAD.size + _CHECKSUM.size:
        raise CorruptData("a delta ends inside its head")
    magic, base_root, target_root, size_bytes, blocks, _ = _HEAD.unpack_from(view)
    if magic != _MAGIC or _CHECKSUM.unpack_from(view, _HEAD.size)[0] != xxh3_64_intdigest(view[: _HEAD.size]):
        raise CorruptData("a delta's head is damaged, or is of a format this release does not know")
    return DeltaHead(base_root=base_root, target_root=target_root, size_bytes=size_bytes, blocks=blocks)


def apply_delta(
    data: bytes | memoryview, target: Manifest, buffer: Buffer, *, workers: int = 1, kernels: Kernels | None = None
) -> tuple[Patch, ...]:
    """Turn `buffer`, in place, from the delta's base into its target; returns what changed, in order.

    target: any manifest with the buffer's layout. Whether the result is right is for `tensors.verify` to prove; the
    delta itself only proves that it arrived whole. Raises: CorruptData; `buffer` may then have been changed in part.
    """
    head = read_head(data)
    if head.size_bytes != buffer.nbytes or target.size_bytes != buffer.nbytes:
        raise CorruptData(f"a delta for {head.size_bytes} bytes does not apply to {buffer.nbytes}")
    blocks = list(_blocks(memoryview(data)[_HEAD.size + _CHECKSUM.size :], count=head.blocks))
    _check_ranges(blocks, target)
    kernels = kernels or kernels_for(target.size_bytes)
    return tuple(_spread(lambda block: _apply(block, buffer, kernels=kernels), blocks, workers=workers))


def _pieces(
    target: Manifest, old: Buffer, new: Buffer, *, block_elements: int
) -> Iterator[tuple[int, BitArray, BitArray]]:
    """Byte offset, old and new elements of each block."""
    for run in runs(target):
        before, after = run.bits(old), run.bits(new)
        for start in range(0, run.elements, block_elements):
            chosen = slice(start, start + block_elements)
            yield run.offset + start * run.width, before[chosen], after[chosen]


def _encode(offset: int, old: BitArray, new: BitArray, *, level: Level, kernels: Kernels) -> tuple[bytes, int]:
    """The block, empty when nothing changed, and how many elements did."""
    payload, changed = encode_block(old, new, bands=BANDS[level], kernels=kernels)
    if not payload:
        return b"", 0
    if len(payload) >= new.nbytes:
        payload, level = new.tobytes(), Level.RAW
    head = _BLOCK.pack(level, new.itemsize, 0, len(new), offset, len(payload), 0)
    return b"".join([head, _CHECKSUM.pack(_block_checksum(head, payload)), payload]), changed


def _blocks(rest: memoryview, *, count: int) -> Iterator[_Block]:
    """Cut the blocks apart; payloads stay views. Raises: CorruptData."""
    for _ in range(count):
        if len(rest) < _BLOCK.size + _CHECKSUM.size:
            raise CorruptData("a delta ends inside a block's head")
        head = rest[: _BLOCK.size]
        level, width, _, elements, offset, payload_bytes, _ = _BLOCK.unpack(head)
        (checksum,) = _CHECKSUM.unpack_from(rest, _BLOCK.size)
        payload = rest[_BLOCK.size + _CHECKSUM.size :][:payload_bytes]
        if len(payload) != payload_bytes or checksum != _block_checksum(head, payload):
            raise CorruptData(f"the delta block at offset {offset} does not match its checksum")
        yield _Block(level=level, width=width, elements=elements, offset=offset, payload=payload)
        rest = rest[_BLOCK.size + _CHECKSUM.size + payload_bytes :]
    if len(rest):
        raise CorruptData(f"{len(rest)} bytes follow the last block of a delta")


def _block_checksum(head: bytes | memoryview, payload: bytes | memoryview) -> int:
    return xxh3_64_intdigest(payload, seed=xxh3_64_intdigest(head))


def _check_ranges(blocks: Iterable[_Block], target: Manifest) -> None:
    """Every block lies inside a run of its width, on element borders, after the one before."""
    by_width = {run.width: run for run in runs(target)}
    end = 0
    for block in blocks:
        run = by_width.get(block.width)
        if run is None or not 0 < block.elements <= MAX_BLOCK_ELEMENTS:
            raise CorruptData(f"a delta block of {block.elements} elements of {block.width} bytes fits no tensor")
        first, odd = divmod(block.offset - run.offset, run.width)
        if odd or first < 0 or first + block.elements > run.elements or block.offset < end:
            raise CorruptData(f"the delta block at offset {block.offset} overlaps others or the end of its tensors")
        end = block.offset + block.elements * block.width


def _apply(block: _Block, buffer: Buffer, *, kernels: Kernels) -> Patch:
    bits = buffer[block.offset : block.offset + block.elements * block.width].view(BITS[block.width])
    match block.level:
        case Level.FAST | Level.DENSE:
            positions = apply_block(block.payload, bits, kernels=kernels)
        case Level.RAW:
            positions = _replace(block.payload, bits)
        case _:
            raise CorruptData(f"a delta block has level {block.level}, which this release does not know")
    return Patch(offset=block.offset, width=block.width, positions=positions)


def _replace(payload: memoryview, bits: BitArray) -> npt.NDArray[np.int64]:
    if len(payload) != bits.nbytes:
        raise CorruptData(f"a raw delta block has {len(payload)} bytes, expected {bits.nbytes}")
    new = np.frombuffer(payload, dtype=bits.dtype)
    changed = np.flatnonzero(bits != new)
    bits[:] = new
    return changed


def _spread(work: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Iterable[Result]:
    """Work through items in order, on several threads when asked."""
    if workers == 1:
        return map(work, items)
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))
