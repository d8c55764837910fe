"""The codec's loops compiled by numba: needs the extra `compiled`, and some seconds once for each machine.

Each loop lets go of the interpreter, so blocks are coded on as many cores as there are threads. Elements are looked at
64 at a time, as one vector of LLVM's: a comparison of two gives a word of 64 bits, whatever the processor has for that.
Machine code is kept in `__pycache__`, or, where that cannot be written, where numba keeps it for the user; where
neither can be, each process compiles for itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.weights.kernels import code_loops, element_loops
from astraflow.weights.kernels.base import (
    BandOrder,
    ByteArray,
    Changes,
    Gaps,
    IndexArray,
    RiceParts,
    ValueArray,
    WordArray,
)
from astraflow.weights.kernels.reference import band_of_key, plain_order
from astraflow.weights.kernels.rice import COST, ESCAPE, sampled_every
from astraflow.weights.tensors import BitArray


class CompiledKernels:
    """`Kernels` as loops of machine code."""

    def changes(self, old: BitArray, new: BitArray) -> Changes:
        """See `Kernels`."""
        old, new = _read_only(old), _read_only(new)
        words = np.empty(_words(len(old)), dtype=np.uint64)
        count = element_loops.differing(old, new, words)
        found = _room(count)
        element_loops.changes(old, new, words, old.itemsize, *_columns(found))
        return found

    def band_order(self, bits: BitArray, first_keys: Sequence[int]) -> BandOrder:
        """See `Kernels`."""
        if len(first_keys) == 1:
            return plain_order(len(bits))
        words = np.empty((len(first_keys), _words(len(bits))), dtype=np.uint64)
        before = np.empty(words.size + 1, dtype=np.int32)
        of_bits = bits.dtype.type
        mask, limits = 2 ** (8 * bits.itemsize - 1) - 1, [_smallest(key, bits.itemsize) for key in first_keys[1:]]
        element_loops.bitmaps(_read_only(bits), of_bits(mask), np.array(limits, dtype=bits.dtype), words, before)
        starts = before[:: words.shape[1]].astype(np.int64)
        return BandOrder(first_keys=first_keys, words=words.reshape(-1), before=before, starts=starts)

    def by_rank(self, changes: Changes, order: BandOrder) -> Changes:
        """See `Kernels`."""
        if not len(order.words):
            return changes
        found = _room(len(changes.at))
        element_loops.sort(
            order.words,
            order.before,
            order.words_per_band,
            band_of_key(order.first_keys),
            *_columns(changes),
            *_columns(found),
        )
        return found

    def move(self, bits: BitArray, order: BandOrder, ranks: IndexArray, folded: BitArray) -> IndexArray:
        """See `Kernels`."""
        positions = ranks
        if len(order.words):
            positions = np.empty(len(ranks), dtype=np.int64)
            element_loops.words_of(order.before, ranks, positions)
            element_loops.positions(order.words, order.before, order.words_per_band, ranks, positions)
        is_moved = np.zeros(_words(len(bits)), dtype=np.uint64)
        element_loops.move(bits, bits.itemsize, positions, folded, is_moved)
        if len(order.words):
            element_loops.set_bits(is_moved, positions)
        return positions

    def gaps(self, chosen: IndexArray, starts: IndexArray) -> Gaps:
        """See `Kernels`."""
        is_inverted, counts = np.empty(len(starts) - 1, dtype=np.bool_), np.empty(len(starts) - 1, dtype=np.int64)
        found = np.empty(code_loops.gap_counts(chosen, starts, is_inverted, counts), dtype=np.uint32)
        code_loops.gaps(chosen, starts, is_inverted, found)
        return Gaps(is_inverted=is_inverted.tolist(), counts=counts, values=found)

    def members(
        self, gaps: IndexArray, counts: Sequence[int], is_inverted: Sequence[bool], starts: IndexArray
    ) -> IndexArray:
        """See `Kernels`."""
        listed, inverted = np.array(counts, dtype=np.int64), np.array(is_inverted, dtype=np.bool_)
        if not code_loops.are_inside(gaps, listed, starts):
            raise CorruptData("a delta block lists an element beyond the end of its band")
        if not any(is_inverted):
            return gaps
        meant = np.where(inverted, np.diff(starts) - listed, listed).sum()
        found = np.empty(int(meant), dtype=np.int64)
        code_loops.flip(gaps, listed, inverted, starts, found)
        return found

    def rice_parts(self, values: ValueArray, counts: IndexArray) -> RiceParts:
        """See `Kernels`."""
        low_bits = np.empty(len(counts), dtype=np.int64)
        code_loops.low_bits(values, counts, sampled_every(counts.tolist()), COST, low_bits)
        unary_bits, remainder_bits, excess_count = code_loops.rice_sizes(values, counts, low_bits)
        unary, remainders = (np.zeros(_words(bits) + 1, dtype=np.uint64) for bits in (unary_bits, remainder_bits))
        excesses = np.empty(excess_count, dtype="<u4")
        code_loops.rice(values, counts, low_bits, unary, remainders, excesses)
        return RiceParts(
            low_bits=low_bits.tolist(),
            unary=_cut(unary, unary_bits),
            remainders=_cut(remainders, remainder_bits),
            excesses=excesses.tobytes(),
        )

    def quotients(self, unary: ByteArray, count: int) -> IndexArray:
        """See `Kernels`."""
        found = np.empty(count, dtype=np.int64)
        largest = code_loops.quotients(_read_only(unary), count, found)
        if largest < 0:
            raise CorruptData(f"a delta block's unary part does not hold {count} values")
        if largest > ESCAPE:
            raise CorruptData("a delta block's unary part has a quotient beyond the escape")
        return found

    def add_remainders(
        self, values: IndexArray, remainders: ByteArray, counts: Sequence[int], low_bits: Sequence[int]
    ) -> None:
        """See `Kernels`."""
        groups = np.array(counts, dtype=np.int64), np.array(low_bits, dtype=np.int64)
        if not code_loops.add_remainders(values, _read_only(remainders), *groups):
            raise CorruptData("a delta block has a value of more than 32 bits")


def _room(changes: int) -> Changes:
    return Changes(
        at=np.empty(changes, dtype=np.int64),
        keys=np.empty(changes, dtype=np.uint8),
        extra=np.empty(changes, dtype=np.uint32),
        is_up=np.empty(changes, dtype=np.uint8),
    )


def _columns(changes: Changes) -> tuple[IndexArray, ByteArray, ValueArray, ByteArray]:
    return changes.at, changes.keys, changes.extra, changes.is_up


def _words(bits: int) -> int:
    """Of 64, that hold them."""
    return (bits + 63) // 64


def _read_only(array: Any) -> Any:
    """A view that cannot be written: loops are compiled once, whether or not the array can be."""
    view = array.view()
    view.flags.writeable = False
    return view


def _smallest(key: int, width: int) -> int:
    """The smallest magnitude with that key or a larger one."""
    return (key + 1) // 2 if width == 1 else key << (8 * width - 9)


def _cut(words: WordArray, bits: int) -> bytes:
    return words.view(np.uint8)[: (bits + 7) // 8].tobytes()
