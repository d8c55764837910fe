"""A random order of any number of items, computed item by item, without stored state."""

import hashlib
import random

from astraflow.datasets.base import check_index

_ROUNDS = 4


class Shuffle:
    """A permutation of `range(size)` that depends on the seed.

    A Feistel network permutes the smallest even number of bits that holds `size`; results outside are permuted again
    until they fall inside (cycle walking), which takes fewer than four tries on average.
    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002.

    >>> sorted(Shuffle(10, seed=1).item(position) for position in range(10))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, size: int, *, seed: int) -> None:
        self._size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._key = hashlib.blake2b(f"shuffle/{seed}".encode(), digest_size=32).digest()

    def item(self, position: int) -> int:
        """Returns the item at `position`. Raises: InvalidInput outside `0 <= position < size`."""
        check_index(position, self._size)
        item = self._permuted(position)
        while item >= self._size:
            item = self._permuted(item)
        return item

    def _permuted(self, number: int) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = number >> self._half_bits, number & mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (self._mixed(turn, right) & mask)
        return left << self._half_bits | right

    def _mixed(self, turn: int, half: int) -> int:
        text = bytes((turn,)) + half.to_bytes((self._half_bits + 7) // 8, "little")
        size = min(64, (self._half_bits + 7) // 8)
        return int.from_bytes(hashlib.blake2b(text, digest_size=size, key=self._key).digest(), "little")


class EpochOrder:
    """Endless order of prompts, addressed by position.

    >>> epochs = EpochOrder(3, seed=1)
    >>> sorted(map(epochs.item, range(3))), sorted(map(epochs.item, range(3, 6)))
    ([0, 1, 2], [0, 1, 2])
    """

    def __init__(self, size: int, *, seed: int, is_shuffled: bool = True) -> None:
        self._size = size
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._epoch = -1
        self._order: Shuffle | None = None

    def item(self, position: int) -> int:
        """Returns the prompt index at a position, counted from the first prompt of the first epoch."""
        epoch, within = divmod(position, self._size)
        if not self._is_shuffled:
            return within
        if self._order is None or epoch != self._epoch:
            self._epoch = epoch
            self._order = Shuffle(self._size, seed=random.Random(f"epoch/{self._seed}/{epoch}").getrandbits(64))
        return self._order.item(within)
