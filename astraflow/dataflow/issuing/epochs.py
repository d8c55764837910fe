"""Order of prompts over epochs: each prompt once per epoch, in an order that depends on the epoch and is not stored."""

import random

from astraflow.datasets.shuffle import Shuffle


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
