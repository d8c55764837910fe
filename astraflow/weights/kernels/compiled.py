"""The codec's loops compiled by numba: needs the extra `compiled`, and some seconds once for each machine.

Each loop is one call that lets go of the interpreter, so blocks are coded on as many cores as there are threads.
Elements are looked at 64 at a time, as one vector of LLVM's. Machine code is kept in `__pycache__`, or, where that
cannot be written, where numba keeps it for the user; where neither can be, each process compiles for itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.kernels import code_loops, decode_loops, element_loops
from astraflow.weights.kernels.base import BandOrder, Changes, Coded, Entry, Groups, IndexArray, Listing, Table
from astraflow.weights.kernels.reference import band_of_key, plain_order
from astraflow.weights.kernels.rice import COST
from astraflow.weights.streams import number
from astraflow.weights.tensors import BitArray


class CompiledKernels:
    """`Kernels` as loops of machine code."""

    def changes(self, old: BitArray, new: BitArray) -> Changes:
        """See `Kernels`."""
        at, keys, extra, is_up = element_loops.changes(_read_only(old), _read_only(new), old.itemsize)
        return Changes(at=at, keys=keys, extra=extra, is_up=is_up)

    def coded(self, bits: BitArray, first_keys: Sequence[int], changes: Changes) -> Coded:
        """See `Kernels`."""
        elements, members, changed, large, extras, directions = code_loops.coded(
            _read_only(bits),
            *_limits(first_keys, bits.dtype),
            band_of_key(first_keys),
            COST,
            changes.at,
            changes.keys,
            changes.extra,
            changes.is_up,
        )
        return Coded(
            elements=elements.tolist(),
            members=members.tolist(),
            changed=_listing(*changed),
            large=_listing(*large),
            extras=_groups(*extras),
            directions=directions.tobytes(),
        )

    def band_order(self, bits: BitArray, first_keys: Sequence[int]) -> BandOrder:
        """See `Kernels`."""
        if len(first_keys) == 1:
            return plain_order(len(bits))
        words, before = element_loops.bitmaps(_read_only(bits), *_limits(first_keys, bits.dtype))
        starts = before[:: words.shape[1]].astype(np.int64)
        return BandOrder(first_keys=first_keys, words=words.reshape(-1), before=before, starts=starts)

    def apply(self, bits: BitArray, order: BandOrder, table: Table, sequences: memoryview) -> IndexArray:
        """See `Kernels`."""
        data = _read_only(np.frombuffer(sequences, dtype=np.uint8))
        extras = [entry.members for entry in table.large], table.low_bits
        try:
            positions: IndexArray = decode_loops.apply(
                bits,
                bits.itemsize,
                order.words,
                order.before,
                order.starts,
                data,
                _columns(table.changed),
                _columns(table.large),
                *(np.array(column, dtype=np.int64) for column in extras),
            )
        except ValueError as problem:
            raise CorruptData(str(problem)) from problem
        return positions


def _read_only(array: Any) -> Any:
    """A view that cannot be written: loops are compiled once, whether or not the array can be."""
    view = array.view()
    view.flags.writeable = False
    return view


def _limits(first_keys: Sequence[int], dtype: np.dtype[np.unsignedinteger]) -> tuple[np.unsignedinteger, BitArray]:
    """What hides the sign, and the smallest magnitude of each band but the first."""
    size_bytes: int = dtype.itemsize
    smallest = [(key + 1) // 2 if size_bytes == 1 else key << (8 * size_bytes - 9) for key in first_keys[1:]]
    return dtype.type(2 ** (8 * size_bytes - 1) - 1), np.array(smallest, dtype=dtype)


def _groups(counts: IndexArray, low_bits: IndexArray, *parts: Any) -> Groups:
    unary, unary_bits, remainders, remainder_bits, excesses = parts
    unary_bytes, remainder_bytes = (unary_bits + 7) // 8, (remainder_bits + 7) // 8
    sequence = (
        number(unary_bytes),
        unary.data.cast("B")[:unary_bytes],
        remainders.data.cast("B")[:remainder_bytes],
        excesses,
    )
    return Groups(counts=counts.tolist(), low_bits=low_bits.tolist(), sequence=b"".join(sequence))


def _listing(is_inverted: Any, gaps: tuple[Any, ...]) -> Listing:
    return Listing(is_inverted=is_inverted.tolist(), gaps=_groups(*gaps))


def _columns(entries: Sequence[Entry]) -> tuple[Any, ...]:
    rows = [(entry.listed, entry.is_inverted, entry.low_bits, entry.members) for entry in entries]
    listed, is_inverted, low_bits, members = np.array(rows, dtype=np.int64).T.copy()
    return listed, is_inverted.astype(np.bool_), low_bits, members
