"""Prompts from local or remote Parquet files, of which a few row groups are in memory at a time."""

import hashlib
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import check_index
from astraflow.datasets.files.prompts import RowOptions, RowPrompts
from astraflow.datasets.shuffle import Shuffle
from astraflow.datasets.tables.base import Table, fingerprint_of
from astraflow.datasets.tables.shards import ShardTable
from astraflow.runtime.config.setting_permissions import SettableBy


class ParquetOptions(RowOptions):
    """Files to read, their order, and the size of the cache."""

    path: Annotated[str, SettableBy.DATA_LOCATION]
    """A file, a folder, or a pattern with `*`: on the machine that runs dataflow, or a URL such as
    `hf://datasets/owner/name/data/*.parquet` or `s3://bucket/folder`, of which only requested parts are fetched."""
    shuffle_window: int = Field(default=0, ge=0)
    """Row groups whose rows are mixed, in an order of row groups shuffled by the seed; 0 keeps the order of the files.
    For data larger than the cache, with the selector `sequential` and its `is_shuffled = false`."""
    cache_mb: int = Field(default=256, ge=1)
    """Memory for decoded row groups, in MB; if `shuffle_window` row groups fit, each is read once."""


@datasets.register("parquet", options=ParquetOptions)
class Parquet(RowPrompts):
    """Rows of Parquet files."""

    def __init__(self, options: ParquetOptions, seed: int) -> None:
        files = ShardTable(
            options.path, options.required_fields, fields=options.fields, cache_bytes=options.cache_mb * 1_000_000
        )
        window = options.shuffle_window
        table: Table = WindowShuffledTable(files, files.group_sizes, window=window, seed=seed) if window else files
        super().__init__(table, options)


class WindowShuffle:
    """Permutation of grouped rows: the groups in shuffled order, and the rows of every `window` groups mixed.

    Reading in this order reads each group once and holds `window` groups. Items are computed one by one, so a cursor is
    a single integer, unlike with a shuffle buffer.

    >>> order = WindowShuffle(np.array([2, 2, 3]), window=2, seed=1)
    >>> sorted(order.item(position) for position in range(7))
    [0, 1, 2, 3, 4, 5, 6]
    """

    def __init__(self, group_sizes: npt.NDArray[np.int64], *, window: int, seed: int) -> None:
        shuffled = Shuffle(len(group_sizes), seed=seed)
        order = np.array([shuffled.item(position) for position in range(len(group_sizes))])
        self._firsts = (np.cumsum(group_sizes) - group_sizes)[order]  # first row of each group, in shuffled order
        self._ends = np.cumsum(group_sizes[order])
        self._window_ends = self._ends[[*range(window - 1, len(order) - 1, window), len(order) - 1]]
        self._window = window
        self._seed = seed
        self._mixed: tuple[int, Shuffle] | None = None

    def item(self, position: int) -> int:
        """Returns the row at `position`. Raises: InvalidInput outside `0 <= position < size`."""
        check_index(position, int(self._ends[-1]))
        window = int(np.searchsorted(self._window_ends, position, side="right"))
        begin = int(self._window_ends[window - 1]) if window else 0
        mixed = begin + self._order_in(window, int(self._window_ends[window]) - begin).item(position - begin)
        group = int(np.searchsorted(self._ends, mixed, side="right"))
        return int(self._firsts[group]) + mixed - (int(self._ends[group - 1]) if group else 0)

    def _order_in(self, window: int, size: int) -> Shuffle:
        if self._mixed is None or self._mixed[0] != window:
            seed = int.from_bytes(hashlib.blake2b(f"window/{self._seed}/{window}".encode(), digest_size=8).digest())
            self._mixed = window, Shuffle(size, seed=seed)
        return self._mixed[1]


class WindowShuffledTable:
    """A table in the order of a `WindowShuffle`."""

    def __init__(self, table: Table, group_sizes: npt.NDArray[np.int64], *, window: int, seed: int) -> None:
        self._table = table
        self._order = WindowShuffle(group_sizes, window=window, seed=seed)
        self.fingerprint = fingerprint_of(table.fingerprint, window, seed)

    @property
    def size(self) -> int:
        """Number of rows."""
        return self._table.size

    def row(self, index: int) -> dict[str, Json]:
        """Returns the row at this position."""
        return self._table.row(self._order.item(index))

    def where(self, index: int) -> str:
        """Returns the location of the row in the files."""
        return self._table.where(self._order.item(index))

    def key(self, index: int) -> str:
        """Returns the key of the row in the files, independent of the order."""
        return self._table.key(self._order.item(index))
