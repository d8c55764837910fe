"""Keys and values of ended sequences, for prompts that begin as they do: the next turn of a conversation."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from astraflow.contract.rollouts.trajectories import Int32Array

BLOCK_TOKENS = 16
"""Prefixes are stored and reused in whole blocks of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredSequence:
    """Computed tokens and, for each layer, their keys and values, `[heads, tokens, head size]` each."""

    tokens: Int32Array
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    blocks: tuple[int, ...]
    """Hash of the tokens up to the end of each block."""

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return sum(layer.nbytes for layer in (*self.keys, *self.values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first `length` tokens of a stored sequence."""

    stored: StoredSequence
    length: int


class PrefixStore:
    """Stored sequences up to `max_bytes` of keys and values; the least recently used leave first.

    A block is indexed by the hash of all tokens up to its end, so a search takes one lookup for each block of the
    prompt. A sequence that continues a stored one replaces it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.nbytes = 0
        self._max_bytes = max_bytes
        self._by_block: dict[int, StoredSequence] = {}
        self._by_use: OrderedDict[int, StoredSequence] = OrderedDict()
        """By the identity of the object, the least recently used first."""

    def missing(self, tokens: Int32Array) -> int:
        """Returns the number of first tokens to store, in whole blocks; 0 when all are stored already."""
        blocks = _block_hashes(tokens) if self._max_bytes else ()
        return 0 if not blocks or blocks[-1] in self._by_block else len(blocks) * BLOCK_TOKENS

    def add(self, tokens: Int32Array, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Stores a sequence of `missing` tokens, with copies of its keys and values that the store may hold."""
        stored = StoredSequence(tokens=tokens, keys=keys, values=values, blocks=_block_hashes(tokens))
        for block in stored.blocks:
            replaced = self._by_block.get(block)
            if replaced is not None and replaced.blocks[-1] == block:
                self._remove(replaced)
            self._by_block[block] = stored
        self._by_use[id(stored)] = stored
        self.nbytes += stored.nbytes
        while self.nbytes > self._max_bytes:
            self._remove(next(iter(self._by_use.values())))

    def longest(self, tokens: Int32Array) -> Prefix | None:
        """Returns the longest stored prefix of `tokens` that leaves at least one token to compute."""
        blocks = _block_hashes(tokens[:-1])
        for count in range(len(blocks), 0, -1):
            stored = self._by_block.get(blocks[count - 1])
            length = count * BLOCK_TOKENS
            if stored is not None and np.array_equal(stored.tokens[:length], tokens[:length]):
                self._by_use.move_to_end(id(stored))
                return Prefix(stored=stored, length=length)
        return None

    def clear(self) -> None:
        """Forgets everything, for other weights."""
        self._by_block.clear()
        self._by_use.clear()
        self.nbytes = 0

    def _remove(self, stored: StoredSequence) -> None:
        for block in stored.blocks:
            if self._by_block.get(block) is stored:
                del self._by_block[block]
        del self._by_use[id(stored)]
        self.nbytes -= stored.nbytes


def _block_hashes(tokens: Int32Array) -> tuple[int, ...]:
    hashes: list[int] = []
    running = 0
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        running = hash((running, tokens[start : start + BLOCK_TOKENS].tobytes()))
        hashes.append(running)
    return tuple(hashes)
