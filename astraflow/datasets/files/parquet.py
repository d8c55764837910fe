"""Prompts from local or remote Parquet files, of which a few row groups are in memory at a time."""

from typing import Annotated

from pydantic import Field

from astraflow.datasets import datasets
from astraflow.datasets.files.prompts import RowOptions, RowPrompts
from astraflow.datasets.tables.base import Table
from astraflow.datasets.tables.shards import ShardTable
from astraflow.datasets.tables.window_shuffle import WindowShuffledTable
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
