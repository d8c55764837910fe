"""Files of rows, for tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets as library
import pyarrow
import pyarrow.parquet

Rows = Sequence[Mapping[str, Any]]

ROWS = [
    {"question": f"What is {number} + {number}?", "answer": str(2 * number), "facts": {"level": [number % 3]}}
    for number in range(50)
]


def write_jsonl(path: Path, rows: Rows = ROWS) -> Path:
    """Writes one object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: Rows = ROWS, *, group_rows: int = 8) -> Path:
    """Writes one file in row groups."""
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=group_rows)
    return path


def write_shards(folder: Path, rows: Rows = ROWS, *, shard_rows: int = 20, group_rows: int = 8) -> Path:
    """Writes several files."""
    folder.mkdir()
    for number, first in enumerate(range(0, len(rows), shard_rows)):
        write_parquet(folder / f"part-{number:03d}.parquet", rows[first : first + shard_rows], group_rows=group_rows)
    return folder


def save_to_disk(folder: Path, rows: Rows = ROWS, *, split: str = "") -> Path:
    """Saves a split, or a dictionary with one, as the `datasets` library does."""
    library.disable_progress_bars()
    table = library.Dataset.from_list([dict(row) for row in rows])
    (library.DatasetDict({split: table}) if split else table).save_to_disk(str(folder))
    return folder
