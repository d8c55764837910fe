"""Loops of the codec compiled by numba: needs the extra `compiled`, and some seconds once on each machine.

Each loop is one call that releases the interpreter lock, so blocks are coded on as many cores as there are threads.
Elements are processed 64 at a time, as one LLVM vector. Machine code is cached in `__pycache__`, or, where that is not
writable, in numba's cache folder of the user; where neither is writable, each process compiles again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.codec.kernels import code_loops, decode_loops, element_loops
from astraflow.weights.codec.kernels.base import (
    COST,
    BandEntry,
    BandOrder,
    BandTable,
    Changes,
    EncodedChanges,
    IndexArray,
    MemberList,
    RiceGroups,
)
from astraflow.weights.codec.kernels.reference import band_of_key, plain_order
from astraflow.weights.codec.payload_codec import encode_varint
from astraflow.weights.tensors import BitArray


class CompiledKernels:
    """`Kernels` as compiled loops."""

    def find_changes(self, old: BitArray, new: BitArray) -> Changes:
        """Implements `Kernels.find_changes`."""
        at, keys, extra, is_up = element_loops.changes(_read_only(old), _read_only(new), old.itemsize)
        return Changes(positions=at, keys=keys, extra_units=extra, is_up=is_up)

    def encode_changes(self, bits: BitArray, first_keys: Sequence[int], changes: Changes) -> EncodedChanges:
        """Implements `Kernels.encode_changes`."""
        elements, members, changed, large, extras, directions = code_loops.encode(
            _read_only(bits),
            *_limits(first_keys, bits.dtype),
            band_of_key(first_keys),
            COST,
            changes.positions,
            changes.keys,
            changes.extra_units,
            changes.is_up,
        )
        return EncodedChanges(
            elements=elements.tolist(),
            members=members.tolist(),
            changed=_listing(*changed),
            large=_listing(*large),
            extras=_groups(*extras),
            directions=directions.tobytes(),
        )

    def band_order(self, bits: BitArray, first_keys: Sequence[int]) -> BandOrder:
        """Implements `Kernels.band_order`."""
        if len(first_keys) == 1:
            return plain_order(len(bits))
        words, before = element_loops.bitmaps(_read_only(bits), *_limits(first_keys, bits.dtype))
        starts = before[:: words.shape[1]].astype(np.int64)
        return BandOrder(first_keys=first_keys, words=words.reshape(-1), cumulative_counts=before, starts=starts)

    def apply(self, bits: BitArray, order: BandOrder, table: BandTable, sequences: memoryview) -> IndexArray:
        """Implements `Kernels.apply`."""
        data = _read_only(np.frombuffer(sequences, dtype=np.uint8))
        extras = [entry.members for entry in table.large], table.low_bits
        try:
            positions: IndexArray = decode_loops.apply(
                bits,
                bits.itemsize,
                order.words,
                order.cumulative_counts,
                order.starts,
                data,
                _columns(table.changed),
                _columns(table.large),
                *(np.array(column, dtype=np.int64) for column in extras),
            )
        except ValueError as problem:
            raise CorruptData(
                f"cannot apply a delta block: {problem}; fetch it again", code="weights.malformed_delta"
            ) from problem
        return positions


def _read_only(array: Any) -> Any:
    """Returns a read-only view, so that loops are compiled once, for both read-only and writable arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


def _limits(first_keys: Sequence[int], dtype: np.dtype[np.unsignedinteger]) -> tuple[np.unsignedinteger, BitArray]:
    """Returns the mask that removes the sign, and the smallest magnitude of each band except the first."""
    size_bytes: int = dtype.itemsize
    smallest = [(key + 1) // 2 if size_bytes == 1 else key << (8 * size_bytes - 9) for key in first_keys[1:]]
    return dtype.type(2 ** (8 * size_bytes - 1) - 1), np.array(smallest, dtype=dtype)


def _groups(counts: IndexArray, low_bits: IndexArray, *parts: Any) -> RiceGroups:
    unary, unary_bits, remainders, remainder_bits, excesses = parts
    unary_bytes, remainder_bytes = (unary_bits + 7) // 8, (remainder_bits + 7) // 8
    sequence = (
        encode_varint(unary_bytes),
        unary.data.cast("B")[:unary_bytes],
        remainders.data.cast("B")[:remainder_bytes],
        excesses,
    )
    return RiceGroups(counts=counts.tolist(), low_bits=low_bits.tolist(), sequence=b"".join(sequence))


def _listing(is_inverted: Any, gaps: tuple[Any, ...]) -> MemberList:
    return MemberList(is_inverted=is_inverted.tolist(), gaps=_groups(*gaps))


def _columns(entries: Sequence[BandEntry]) -> tuple[Any, ...]:
    rows = [(entry.listed, entry.is_inverted, entry.low_bits, entry.members) for entry in entries]
    listed, is_inverted, low_bits, members = np.array(rows, dtype=np.int64).T.copy()
    return listed, is_inverted.astype(np.bool_), low_bits, members
