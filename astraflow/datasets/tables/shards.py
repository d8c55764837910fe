"""Tables of local or remote Parquet files, read one row group at a time."""

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
from astraflow.datasets.base import check_index, path_remedy
from astraflow.datasets.tables.base import RequiredFields, fingerprint_of, import_optional
from astraflow.datasets.tables.columns import check_values, chosen_columns, json_row

CHECKED_BYTES = 2**31
"""Size of the row groups of local files, without compression, that are checked at opening. Later rows are checked when
they are read."""
_FOOTERS_AT_ONCE = 16
"""Files whose footers are read concurrently: reading is dominated by waiting for the remote side. Count."""


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

    path: a file, a folder, or a pattern with `*`, local or as a URL that fsspec supports (`hf://`, `s3://`).
    cache_bytes: size of the recently used decoded row groups; the row group in use is held even if it is larger.
    """

    def __init__(
        self, path: str, required_fields: RequiredFields, *, fields: Sequence[str] = (), cache_bytes: int
    ) -> None:
        self._files, root = _file_system(path)
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as readers:
            self._shards = list(readers.map(self._shard, _paths(self._files, root, path)))
        self._columns = self._checked_columns(required_fields, fields)
        self._groups = [(shard, index) for shard in self._shards for index in range(shard.footer.num_row_groups)]
        self.group_sizes = np.array([shard.footer.row_group(index).num_rows for shard, index in self._groups], np.int64)
        """Number of rows of each row group."""
        self._ends = np.cumsum(self.group_sizes)
        if not self.size:
            raise InvalidInput(
                f"cannot use dataset {path!r}: its Parquet files have no rows; check the path", code="dataset.empty"
            )
        self._cache = RowGroupCache(cache_bytes)
        self._check_rows(required_fields)

    @property
    def size(self) -> int:
        """Number of rows of all files."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the footers, which contain size, position and extremes of every column of every row group."""
        return fingerprint_of(*(shard.footer_hash for shard in self._shards))

    def row(self, index: int) -> dict[str, Json]:
        """Returns row number `index` of all files together."""
        group, within = self._locate(index)
        rows = self._cache.get(group, partial(self._read, *self._groups[group]))
        return json_row(rows.slice(within, 1), self.where(index))

    def where(self, index: int) -> str:
        """Returns file, row group and row, for messages."""
        group, within = self._locate(index)
        shard, group_in_file = self._groups[group]
        return f"{shard.path}, row {within} of row group {group_in_file}"

    def key(self, index: int) -> str:
        """Returns the number of the row, counted from 0 over all files."""
        return f"row:{index}"

    def _check_rows(self, required_fields: RequiredFields) -> None:
        """Checks the rows of local files, up to `CHECKED_BYTES`. Raises: InvalidInput with the first unusable row."""
        if "file" not in self._files.protocol:
            return  # reading would fetch all of it; a row that is unusable is refused when it is read
        remaining = CHECKED_BYTES
        for number, (shard, group) in enumerate(self._groups):
            remaining -= shard.footer.row_group(group).total_byte_size
            if remaining < 0:
                return
            first = int(self._ends[number] - self.group_sizes[number])
            check_values(self._read(shard, group), required_fields, partial(self._where_in, first))

    def _where_in(self, first: int, index: int) -> str:
        return self.where(first + index)

    def _locate(self, index: int) -> tuple[int, int]:
        check_index(index, self.size)
        group = int(np.searchsorted(self._ends, index, side="right"))
        return group, index - int(self._ends[group] - self.group_sizes[group])

    def _shard(self, path: str) -> Shard:
        parquet = import_optional("pyarrow.parquet")
        try:
            with parquet.ParquetFile(path, filesystem=self._files) as file:
                footer = file.metadata
            content = self._files.tail(path, footer.serialized_size + 8)  # with its length and the magic number
        except (OSError, import_optional("pyarrow").ArrowException) as problem:
            raise InvalidInput(
                f"cannot read dataset {path!r} as Parquet: {problem}; check the file", code="dataset.unreadable"
            ) from problem
        return Shard(path=path, footer=footer, footer_hash=fingerprint_of(content), stamp=self._stamp(path))

    def _read(self, shard: Shard, number: int) -> Any:
        parquet = import_optional("pyarrow.parquet")
        try:
            if self._stamp(shard.path) != shard.stamp:
                raise InvalidInput(
                    f"cannot read dataset {shard.path!r}: the file was modified while it was in use; restore it and "
                    "start again",
                    code="dataset.modified",
                )
            with parquet.ParquetFile(shard.path, filesystem=self._files, metadata=shard.footer) as file:
                return file.read_row_group(number, columns=self._columns)
        except (OSError, import_optional("pyarrow").ArrowException) as problem:
            raise InvalidInput(
                f"cannot read row group {number} of dataset {shard.path!r}: {problem}; check the file",
                code="dataset.unreadable",
            ) from problem

    def _stamp(self, path: str) -> tuple[str, ...]:
        """Returns the size and other attributes of the file system that change with the content."""
        attributes = self._files.info(path)
        return tuple(str(attributes.get(name)) for name in ("size", "mtime", "ETag", "etag", "blob_id", "created"))

    def _checked_columns(self, required_fields: RequiredFields, fields: Sequence[str]) -> list[str]:
        first = self._shards[0]
        columns = chosen_columns(first.footer.schema.to_arrow_schema(), required_fields, fields, first.path)
        for shard in self._shards:
            schema = shard.footer.schema.to_arrow_schema()
            if chosen_columns(schema, required_fields, fields, shard.path) != columns:
                raise InvalidInput(
                    f"cannot read {shard.path!r}: its columns differ from {first.path!r}; choose common columns "
                    "with `fields`",
                    code="dataset.different_columns",
                )
            _check_filled(shard, required_fields)
        return columns


class RowGroupCache:
    """Recently used row groups, up to a total size."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[int, Any] = OrderedDict()
        self._bytes = 0

    def get(self, number: int, read: Any) -> Any:
        """Returns the row group, reading it if it is not held."""
        if number not in self._held:
            rows = read()
            self._held[number] = rows
            self._bytes += rows.nbytes
            while self._bytes > self._max_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1].nbytes
        self._held.move_to_end(number)
        return self._held[number]


def _file_system(path: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a path, and the path in it."""
    fsspec = import_optional("fsspec")
    try:
        files, root = fsspec.core.url_to_fs(path if "://" in path else str(Path(path).expanduser().absolute()))
    except (ImportError, ValueError) as problem:
        raise InvalidInput(
            f"cannot open dataset {path!r}: {problem}; check the URL", code="dataset.unreadable"
        ) from problem
    return files, root


def _paths(files: Any, root: str, path: str) -> list[str]:
    try:
        if "*" in root:
            paths = files.glob(root)
        else:
            paths = files.glob(f"{root}/**/*.parquet") if files.isdir(root) else [root] if files.isfile(root) else []
    except OSError as problem:
        raise InvalidInput(
            f"cannot list dataset {path!r}: {problem}; check the path", code="dataset.unreadable"
        ) from problem
    if not paths:
        remedy = "check the path" if "://" in path else path_remedy(path)
        raise InvalidInput(f"cannot use dataset {path!r}: it has no Parquet files; {remedy}", code="dataset.not_found")
    return sorted(paths)


def _check_filled(shard: Shard, required_fields: RequiredFields) -> None:
    """Checks the required columns for nulls, as far as the footer lists them. Raises: InvalidInput."""
    for group_index in range(shard.footer.num_row_groups):
        group = shard.footer.row_group(group_index)
        for column in (group.column(index) for index in range(group.num_columns)):
            counts = column.statistics
            if (
                column.path_in_schema in required_fields
                and counts is not None
                and counts.has_null_count
                and counts.null_count
            ):
                raise InvalidInput(
                    f"cannot use row group {group_index} of {shard.path!r}: column {column.path_in_schema!r} has "
                    f"{counts.null_count} rows without a value; remove them, or choose another column",
                    code="dataset.missing_values",
                )
