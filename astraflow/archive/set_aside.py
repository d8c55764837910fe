"""Data of a run that was set aside, because it ended a trainer or could not be read: files for a bug report.

    FOLDER/solver-7-1795857569432.jsonl.gz      a batch: its failed steps in the first line, then one line for each row
    FOLDER/records-1795857569432.jsonl.gz       stored records that could not be read: one line for each

The first line has a summary. Numbers that are not finite are written as `NaN` and `Infinity`, which most readers of
JSON accept; bytes as base64.
"""

import base64
import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from astraflow.archive.connection import ARCHIVE_PATH
from astraflow.contract.batches import Row, StepFailure
from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import BatchId, PolicyId, Version
from astraflow.runtime.logs import get_logger

log = get_logger()

FOLDER = "set_aside"
"""Name of the folder, beside the archive."""

SET_ASIDE_PATH = ARCHIVE_PATH.parent / FOLDER
"""Path of the folder in that of a run."""

MAX_FILES = 20
"""Newest files that stay. Count."""

MAX_BYTES = 256 * 2**20
"""Limit of the size of all files; the newest file may exceed it."""

_ENDING = ".jsonl.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideBatch:
    """A batch that is not trained."""

    batch: BatchId
    policy: PolicyId
    version: Version
    """Trainer's version when the batch was assembled."""
    errors: tuple[str, ...]
    """Errors of its failed steps, oldest first."""
    groups: int
    nodes: dict[str, int]
    """Number of rows by node, most first."""

    @property
    def summary(self) -> str:
        """The batch and its errors as text."""
        nodes = ", ".join(f"{rows} of {node}" for node, rows in self.nodes.items())
        return f"batch {self.batch}, {self.groups} groups, {sum(self.nodes.values())} rows ({nodes}): " + "; ".join(
            dict.fromkeys(self.errors)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRecord:
    """A stored record that could not be read."""

    what: str
    """Kind of the record, such as `result` or `group`."""
    key: str
    """Key of the record in its table."""
    problem: str
    body: bytes
    """Bytes of the record; empty when they could not be read either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideFile:
    """A file in the folder."""

    path: Path
    size_bytes: int
    at: float
    """Time at which the data was set aside. Unix seconds."""
    summary: str
    """Summary of the file's contents; empty when it is unreadable."""

    @property
    def name(self) -> str:
        """Name of the file without its ending."""
        return self.path.name.removesuffix(_ENDING)


class SetAsideFiles:
    """Folder of the files. All methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store_batch(self, batch: SetAsideBatch, rows: Iterable[Row], *, at: float) -> str:
        """Writes a batch durably, and deletes the oldest files; returns its name. Raises: OSError."""
        head = {**asdict(batch), "summary": batch.summary}
        return self._store(batch.batch.replace(":", "-"), head, map(_row_line, rows), at=at)

    def store_records(self, records: Sequence[DamagedRecord], *, at: float) -> str:
        """Writes damaged records durably, and deletes the oldest files; returns the name. Raises: OSError."""
        head = {"records": len(records), "summary": f"{len(records)} records: {counts_text(records)}"}
        lines = ({**asdict(record), "body": base64.b64encode(record.body).decode()} for record in records)
        return self._store("records", head, lines, at=at)

    def files(self) -> list[SetAsideFile]:
        """Returns the files, newest first."""
        if not self._folder.is_dir():
            return []
        files = [_read(path) for path in self._folder.iterdir() if path.name.endswith(_ENDING)]
        return sorted(files, key=lambda file: (file.at, file.name), reverse=True)

    def _store(self, begin: str, head: dict[str, Any], lines: Iterable[dict[str, Any]], *, at: float) -> str:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{begin}-{round(at * 1000)}"
        partial = self._folder / f"{name}.partial"
        with partial.open("wb") as file:
            with gzip.open(file, "wt", compresslevel=3, encoding="utf-8") as text:
                text.write(json.dumps({**head, "at": at}, default=_plain) + "\n")
                text.writelines(json.dumps(line, default=_plain) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self._folder / f"{name}{_ENDING}")
        for surplus in self._surplus():
            surplus.path.unlink(missing_ok=True)
        return name

    def _surplus(self) -> Iterator[SetAsideFile]:
        total_bytes = 0
        for index, file in enumerate(self.files()):
            total_bytes += file.size_bytes
            if index >= MAX_FILES or (index and total_bytes > MAX_BYTES):
                yield file


def export(file: SetAsideFile, folder: Path) -> Path:
    """Writes the lines of a file, uncompressed, into a folder; returns the path. Raises: CorruptData, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{file.name}.jsonl"
    try:
        with gzip.open(file.path, "rb") as packed, target.open("wb") as plain:
            while block := packed.read(2**20):
                plain.write(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise CorruptData(
            f"cannot export {str(file.path)!r}: {problem}; the lines before the damage are in {str(target)!r}",
            code="set_aside.damaged",
        ) from problem
    return target


def row_nodes(rows: Sequence[Row]) -> dict[str, int]:
    return dict(Counter(str(row.node) for row in rows).most_common())


def counts_text(records: Iterable[DamagedRecord]) -> str:
    """Returns the numbers of records by kind as text."""
    counts = Counter(record.what for record in records)
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def failure_text(failure: StepFailure) -> str:
    """Returns the cause of a failed step as text."""
    return failure.error or "the process ended without a message"


def _row_line(row: Row) -> dict[str, Any]:
    trajectory = asdict(replace(row.trajectory, calls=()))
    return {"group": row.group, "task": row.task, "node": row.node, **trajectory}


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _read(path: Path) -> SetAsideFile:
    status = path.stat()
    summary, at = "", status.st_mtime
    try:
        with gzip.open(path, "rt", encoding="utf-8") as text:
            head = json.loads(text.readline())
        summary, at = str(head["summary"]), float(head["at"])
    except Exception as problem:  # damaged bytes fail in gzip, zlib, JSON and the types
        log.warning("set_aside_file_unreadable", path=str(path), problem=str(problem))
    return SetAsideFile(path=path, size_bytes=status.st_size, at=at, summary=summary)
