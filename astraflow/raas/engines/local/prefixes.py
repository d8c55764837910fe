"""What ended sequences have computed, for prompts that begin as they do: the next turn of a conversation."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from torch import Tensor

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.prefix_hashes import block_hashes

BLOCK_TOKENS = 16
"""Prefixes are stored and reused in whole blocks of so many tokens."""


StateName: TypeAlias = tuple[Literal["convolution", "recurrence"], int, int]
"""Kind of a state, its layer, and its number among the states of this kind in the layer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredSequence:
    """Computed tokens; their keys and values by layer, `[heads, tokens, head size]` each; and the states after them."""

    tokens: Int32Array
    keys: Mapping[int, Tensor]
    values: Mapping[int, Tensor]
    states: Mapping[StateName, Tensor]
    marks: tuple[int, ...]
    """Hash of the tokens up to each place where a prefix may end."""

    @property
    def nbytes(self) -> int:
        """Memory of the keys, values and states."""
        parts = (self.keys, self.values, self.states)
        return sum(tensor.nbytes for part in parts for tensor in part.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first `length` tokens of a stored sequence."""

    stored: StoredSequence
    length: int


class PrefixStore:
    """Stored sequences up to `max_bytes`; the least recently used leave first.

    A prefix ends after a whole block. A block is indexed by the hash of all tokens up to its end, so a search takes one
    lookup for each block of the prompt. A sequence that continues a stored one replaces it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.nbytes = 0
        self._max_bytes = max_bytes
        self._by_mark: dict[int, StoredSequence] = {}
        self._by_use: OrderedDict[int, StoredSequence] = OrderedDict()
        """By the identity of the object, the least recently used first."""

    def missing(self, tokens: Int32Array) -> int:
        """Returns the number of first tokens to store; 0 when all are stored already."""
        marks = self._marks(tokens) if self._max_bytes else ()
        return 0 if not marks or marks[-1] in self._by_mark else self._storable(len(tokens))

    def add(
        self,
        tokens: Int32Array,
        keys: Mapping[int, Tensor],
        values: Mapping[int, Tensor],
        states: Mapping[StateName, Tensor],
    ) -> None:
        """Stores a sequence of `missing` tokens, with copies of what was computed that the store may hold."""
        stored = StoredSequence(tokens=tokens, keys=keys, values=values, states=states, marks=self._marks(tokens))
        for mark in stored.marks:
            replaced = self._by_mark.get(mark)
            if replaced is not None and replaced.marks[-1] == mark:
                self._remove(replaced)
            self._by_mark[mark] = stored
        self._by_use[id(stored)] = stored
        self.nbytes += stored.nbytes
        while self.nbytes > self._max_bytes:
            self._remove(next(iter(self._by_use.values())))

    def longest(self, tokens: Int32Array) -> Prefix | None:
        """Returns the longest stored prefix of `tokens` that leaves at least one token to compute."""
        for length, mark in self._ends(tokens):
            stored = self._by_mark.get(mark)
            if stored is not None and np.array_equal(stored.tokens[:length], tokens[:length]):
                self._by_use.move_to_end(id(stored))
                return Prefix(stored=stored, length=length)
        return None

    def clear(self) -> None:
        """Forgets everything, for other weights."""
        self._by_mark.clear()
        self._by_use.clear()
        self.nbytes = 0

    def _storable(self, length: int) -> int:
        return length // BLOCK_TOKENS * BLOCK_TOKENS

    def _marks(self, tokens: Int32Array) -> tuple[int, ...]:
        return block_hashes(tokens, BLOCK_TOKENS)

    def _ends(self, tokens: Int32Array) -> Iterator[tuple[int, int]]:
        """Returns the lengths of possible prefixes, the longest first, and their marks."""
        blocks = block_hashes(tokens[:-1], BLOCK_TOKENS)
        return ((count * BLOCK_TOKENS, blocks[count - 1]) for count in range(len(blocks), 0, -1))

    def _remove(self, stored: StoredSequence) -> None:
        for mark in stored.marks:
            if self._by_mark.get(mark) is stored:
                del self._by_mark[mark]
        del self._by_use[id(stored)]
        self.nbytes -= stored.nbytes


class WholePrefixStore(PrefixStore):
    """Store for models with recurrent states, which exist only after the last token: a prefix is a whole sequence."""

    def _storable(self, length: int) -> int:
        return length

    def _marks(self, tokens: Int32Array) -> tuple[int, ...]:
        return (_whole_hash(tokens, block_hashes(tokens, BLOCK_TOKENS)),)

    def _ends(self, tokens: Int32Array) -> Iterator[tuple[int, int]]:
        """Returns at most the length that leaves two tokens: of a single one, models write states in place."""
        blocks = block_hashes(tokens, BLOCK_TOKENS)
        lengths = {len(stored.tokens) for stored in self._by_use.values() if len(stored.tokens) <= len(tokens) - 2}
        return ((length, _whole_hash(tokens[:length], blocks)) for length in sorted(lengths, reverse=True))


def _whole_hash(tokens: Int32Array, blocks: tuple[int, ...]) -> int:
    """Returns the hash of all tokens. blocks: hashes of their whole blocks, and perhaps of further ones."""
    count = len(tokens) // BLOCK_TOKENS
    return hash((blocks[count - 1] if count else 0, tokens[count * BLOCK_TOKENS :].tobytes()))
