"""The order of prompts over epochs: each once an epoch, in an order that changes with the epoch and is never stored."""

import random

from astraflow.datasets.shuffle import Shuffle


class Epochs:
    """An endless order of prompts, place by place.

    >>> epochs = Epochs(3, seed=1)
    >>> sorted(epochs.item(place) for place in range(3)), sorted(epochs.item(place) for place in range(3, 6))
    ([0, 1, 2], [0, 1, 2])
    """

    def __init__(self, size: int, *, seed: int, is_shuffled: bool = True) -> None:
        self._size = size
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._epoch = -1
        self._order: Shuffle | None = None

    def item(self, place: int) -> int:
        """The prompt at a place, counted from the first epoch's first."""
        epoch, within = divmod(place, self._size)
        if not self._is_shuffled:
            return within
        if self._order is None or epoch != self._epoch:
            self._epoch = epoch
            self._order = Shuffle(self._size, seed=random.Random(f"epoch/{self._seed}/{epoch}").getrandbits(64))
        return self._order.item(within)
