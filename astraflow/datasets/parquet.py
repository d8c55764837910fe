"""Prompts from Parquet files, here or behind an address, of which a few row groups are in memory at a time."""

from typing import Annotated

from pydantic import Field

from astraflow.datasets import datasets
from astraflow.datasets.prompts import RowOptions, RowPrompts
from astraflow.datasets.tables.base import Table
from astraflow.datasets.tables.shards import ShardTable
from astraflow.datasets.tables.windows import WindowTable
from astraflow.runtime.overrides import SetBy


class ParquetOptions(RowOptions):
    """Which files, in which order, and how much of them to hold."""

    path: Annotated[str, SetBy.PLACE]
    """A file, a folder of them, or a pattern with `*`: on the machine that runs dataflow, or an address such as
    `hf://datasets/owner/name/data/*.parquet` or `s3://bucket/folder`, of which only what is asked for is fetched."""
    shuffle_window: int = Field(default=0, ge=0)
    """Row groups that are mixed with each other, in an order of row groups that the seed shuffles; 0 keeps the order of
    the files. For data that is larger than the cache, with the selector `sequential` and its `is_shuffled = false`."""
    cache_mb: int = Field(default=256, ge=1)
    """Memory for decoded row groups, in MB; enough for `shuffle_window` of them reads each row group once."""


@datasets.register("parquet", options=ParquetOptions)
class Parquet(RowPrompts):
    """Rows of all files."""

    def __init__(self, options: ParquetOptions, seed: int) -> None:
        files = ShardTable(
            options.path, options.wanted, fields=options.fields, cache_bytes=options.cache_mb * 1_000_000
        )
        window = options.shuffle_window
        table: Table = WindowTable(files, files.group_sizes, window=window, seed=seed) if window else files
        super().__init__(table, options)
