"""Parquet files, here or behind an address, read a row group at a time."""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index
from astraflow.datasets.tables.base import Wanted, as_json, fingerprint_of
from astraflow.datasets.tables.columns import chosen_columns
from astraflow.datasets.tables.extra import extra_module

_FOOTERS_AT_ONCE = 16
"""Files whose footers are read at a time: what takes time is waiting for the other side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One Parquet file as it was when the table was opened."""

    path: str
    footer: Any
    """`pyarrow.parquet.FileMetaData`."""
    footer_hash: str
    stamp: tuple[str, ...]


class ShardTable:
    """Rows of all files, in the order of their paths. Holds footers, and row groups up to `cache_bytes`.

    path: a file, a folder, or a pattern with `*`, on this machine or as an address that fsspec knows (`hf://`, `s3://`).
    cache_bytes: decoded row groups, the latest used; the one in use is held even if it is larger.
    """

    def __init__(self, path: str, wanted: Wanted, *, fields: Sequence[str] = (), cache_bytes: int) -> None:
        self._files, root = _file_system(path)
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as readers:
            self._shards = list(readers.map(self._shard, _paths(self._files, root, path)))
        self._columns = self._checked_columns(wanted, fields)
        self._groups = [(shard, number) for shard in self._shards for number in range(shard.footer.num_row_groups)]
        self.group_sizes = np.array([shard.footer.row_group(n).num_rows for shard, n in self._groups], np.int64)
        """Rows of each row group."""
        self._ends = np.cumsum(self.group_sizes)
        if not self.size:
            raise InvalidInput(f"dataset {path} is empty: its Parquet files have no rows")
        self._cache = GroupCache(cache_bytes)

    @property
    def size(self) -> int:
        """Rows of all files."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def fingerprint(self) -> str:
        """Of the footers, which hold the size, place and extremes of every column of every row group."""
        return fingerprint_of(*(shard.footer_hash for shard in self._shards))

    def row(self, index: int) -> dict[str, Json]:
        """Row number `index` of all files together."""
        group, within = self._place(index)
        rows = self._cache.get(group, partial(self._read, *self._groups[group]))
        values = rows.slice(within, 1).to_pylist()[0]
        return {name: as_json(value, f"{self.where(index)}: column {name!r}") for name, value in values.items()}

    def where(self, index: int) -> str:
        """File, row group and row."""
        group, within = self._place(index)
        shard, number = self._groups[group]
        return f"{shard.path}, row {within} of row group {number}"

    def key(self, index: int) -> str:
        """The row, counted from 0 over all files."""
        return f"row:{index}"

    def _place(self, index: int) -> tuple[int, int]:
        check_index(index, self.size)
        group = int(np.searchsorted(self._ends, index, side="right"))
        return group, index - int(self._ends[group] - self.group_sizes[group])

    def _shard(self, path: str) -> Shard:
        parquet = extra_module("pyarrow.parquet")
        try:
            with parquet.ParquetFile(path, filesystem=self._files) as found:
                footer = found.metadata
            content = self._files.tail(path, footer.serialized_size + 8)  # and its length, and the magic number
        except (OSError, extra_module("pyarrow").ArrowException) as problem:
            raise InvalidInput(f"dataset {path} cannot be read as Parquet: {problem}") from problem
        return Shard(path=path, footer=footer, footer_hash=fingerprint_of(content), stamp=self._stamp(path))

    def _read(self, shard: Shard, number: int) -> Any:
        parquet = extra_module("pyarrow.parquet")
        try:
            if self._stamp(shard.path) != shard.stamp:
                raise InvalidInput(f"dataset {shard.path} changed while it was in use: put it back and start again")
            with parquet.ParquetFile(shard.path, filesystem=self._files, metadata=shard.footer) as found:
                return found.read_row_group(number, columns=self._columns)
        except (OSError, extra_module("pyarrow").ArrowException) as problem:
            raise InvalidInput(f"dataset {shard.path}, row group {number} cannot be read: {problem}") from problem

    def _stamp(self, path: str) -> tuple[str, ...]:
        """Size, and whatever else the file system has that changes with the content."""
        found = self._files.info(path)
        return tuple(str(found.get(name)) for name in ("size", "mtime", "ETag", "etag", "blob_id", "created"))

    def _checked_columns(self, wanted: Wanted, fields: Sequence[str]) -> list[str]:
        first = self._shards[0]
        columns = chosen_columns(first.footer.schema.to_arrow_schema(), wanted, fields, first.path)
        for shard in self._shards:
            schema = shard.footer.schema.to_arrow_schema()
            if chosen_columns(schema, wanted, fields, shard.path) != columns:
                raise InvalidInput(
                    f"{shard.path} has other columns than {first.path}; choose common ones with `fields`"
                )
            _check_filled(shard, wanted)
        return columns


class GroupCache:
    """Row groups, the latest used, up to a size."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[int, Any] = OrderedDict()
        self._bytes = 0

    def get(self, number: int, read: Any) -> Any:
        """The row group; read if it is not held."""
        if number not in self._held:
            rows = read()
            self._held[number] = rows
            self._bytes += rows.nbytes
            while self._bytes > self._max_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1].nbytes
        self._held.move_to_end(number)
        return self._held[number]


def _file_system(path: str) -> tuple[Any, str]:
    """The fsspec file system of a path, and the path in it."""
    fsspec = extra_module("fsspec")
    try:
        files, root = fsspec.core.url_to_fs(path if "://" in path else str(Path(path).expanduser().absolute()))
    except (ImportError, ValueError) as problem:
        raise InvalidInput(f"dataset {path}: this address cannot be opened: {problem}") from problem
    return files, root


def _paths(files: Any, root: str, path: str) -> list[str]:
    try:
        if "*" in root:
            found = files.glob(root)
        else:
            found = files.glob(f"{root}/**/*.parquet") if files.isdir(root) else [root] if files.isfile(root) else []
    except OSError as problem:
        raise InvalidInput(f"dataset {path} cannot be listed: {problem}") from problem
    if not found:
        raise InvalidInput(f"dataset {path}: there are no Parquet files there")
    return sorted(found)


def _check_filled(shard: Shard, wanted: Wanted) -> None:
    """Raises: InvalidInput when a wanted column has nulls, as far as the footer tells."""
    for number in range(shard.footer.num_row_groups):
        group = shard.footer.row_group(number)
        for column in (group.column(place) for place in range(group.num_columns)):
            counts = column.statistics
            if column.path_in_schema in wanted and counts is not None and counts.has_null_count and counts.null_count:
                raise InvalidInput(
                    f"{shard.path}, row group {number}: column {column.path_in_schema!r} has {counts.null_count} rows "
                    "without a value"
                )
