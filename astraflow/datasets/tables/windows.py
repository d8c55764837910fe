"""An order that is shuffled and still reads a file in few pieces."""

import hashlib

import numpy as np
import numpy.typing as npt

from astraflow.contract.values import Json
from astraflow.datasets.base import check_index
from astraflow.datasets.shuffle import Shuffle
from astraflow.datasets.tables.base import Table, fingerprint_of


class Windows:
    """A permutation of rows that lie in groups: the groups in shuffled order, and the rows of a few of them mixed.

    Whoever goes through it in order reads each group once, and holds `window` groups. It is computed row by row, so
    that an integer is all a cursor has to remember, as with a shuffle buffer it would not be.

    >>> order = Windows(np.array([2, 2, 3]), window=2, seed=1)
    >>> sorted(order.item(place) for place in range(7))
    [0, 1, 2, 3, 4, 5, 6]
    """

    def __init__(self, group_sizes: npt.NDArray[np.int64], *, window: int, seed: int) -> None:
        shuffled = Shuffle(len(group_sizes), seed=seed)
        order = np.array([shuffled.item(place) for place in range(len(group_sizes))])
        self._firsts = (np.cumsum(group_sizes) - group_sizes)[order]  # row that each group begins with, as shuffled
        self._ends = np.cumsum(group_sizes[order])
        self._window_ends = self._ends[[*range(window - 1, len(order) - 1, window), len(order) - 1]]
        self._window = window
        self._seed = seed
        self._mixed: tuple[int, Shuffle] | None = None

    def item(self, place: int) -> int:
        """Which row stands at `place`. Raises: InvalidInput outside `0 <= place < size`."""
        check_index(place, int(self._ends[-1]))
        window = int(np.searchsorted(self._window_ends, place, side="right"))
        begin = int(self._window_ends[window - 1]) if window else 0
        mixed = begin + self._order_in(window, int(self._window_ends[window]) - begin).item(place - begin)
        group = int(np.searchsorted(self._ends, mixed, side="right"))
        return int(self._firsts[group]) + mixed - (int(self._ends[group - 1]) if group else 0)

    def _order_in(self, window: int, size: int) -> Shuffle:
        if self._mixed is None or self._mixed[0] != window:
            seed = int.from_bytes(hashlib.blake2b(f"window/{self._seed}/{window}".encode(), digest_size=8).digest())
            self._mixed = window, Shuffle(size, seed=seed)
        return self._mixed[1]


class WindowTable:
    """A table in such an order."""

    def __init__(self, table: Table, group_sizes: npt.NDArray[np.int64], *, window: int, seed: int) -> None:
        self._table = table
        self._order = Windows(group_sizes, window=window, seed=seed)
        self.fingerprint = fingerprint_of(table.fingerprint, window, seed)

    @property
    def size(self) -> int:
        """As the table's."""
        return self._table.size

    def row(self, index: int) -> dict[str, Json]:
        """The row that stands there."""
        return self._table.row(self._order.item(index))

    def where(self, index: int) -> str:
        """Its place in the files."""
        return self._table.where(self._order.item(index))

    def key(self, index: int) -> str:
        """Its number in the files, whatever the order."""
        return self._table.key(self._order.item(index))
