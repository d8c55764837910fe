"""Connections to the archive's file: read-only, with a time limit for queries."""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from astraflow.contract.errors import DeadlineExceeded, Unavailable
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import sqlite_remedy

R = TypeVar("R")
T = TypeVar("T")
log = get_logger()

ARCHIVE_PATH = Path("dataflow", "history.sqlite")
"""Path of the archive in the folder of a run."""

QUERY_S = 5.0
"""Time limit of a query."""


def open_read_only(path: Path, *, is_immutable: bool = False) -> sqlite3.Connection:
    """Opens a read-only connection. is_immutable: no process writes the file and it is complete."""
    mode = "mode=ro&immutable=1" if is_immutable else "mode=ro"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, check_same_thread=False)
    connection.execute("pragma query_only = on")
    connection.text_factory = lenient_text
    return connection


def lenient_text(raw: bytes) -> str:
    """Returns a text column. Damaged characters are replaced, so that one damaged row does not hide the others."""
    return raw.decode(errors="replace")


def is_damaged(problem: sqlite3.DatabaseError) -> bool:
    """Returns whether the error means that the file itself is damaged, which includes the names of its tables and
    columns, or no database."""
    if str(problem).startswith(("no such table", "no such column")):
        return True
    return getattr(problem, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def decoded_rows(rows: Iterable[tuple[Any, ...]], decode: Callable[[tuple[Any, ...]], R], *, table: str) -> Iterator[R]:
    """Yields the decoded rows; leaves out those that cannot be decoded, which are logged."""
    for row in rows:
        try:
            yield decode(row)
        except Exception as problem:  # damaged bytes fail in protobuf, JSON and contract types
            log.warning("archive_row_unreadable", table=table, row=str(row[0])[:100], problem=repr(problem))


def open_recorded(path: Path) -> sqlite3.Connection:
    """Opens the archive of a run that may have ended: without a write-ahead log, SQLite then creates no files next to
    it."""
    return open_read_only(path, is_immutable=not path.with_name(f"{path.name}-wal").exists())


def run_query(database: sqlite3.Connection, question: Callable[[sqlite3.Connection], T]) -> T:
    """Runs a query. Raises: DeadlineExceeded when it takes too long, Unavailable while the file cannot be used."""
    give_up_at = time.monotonic() + QUERY_S
    database.set_progress_handler(lambda: time.monotonic() > give_up_at, 10_000)
    try:
        return question(database)
    except sqlite3.OperationalError as problem:
        remedy = sqlite_remedy(problem)
        if remedy is not None:
            raise Unavailable(f"cannot read the archive: {problem}; {remedy}", code="archive.outage") from problem
        if getattr(problem, "sqlite_errorname", "") != "SQLITE_INTERRUPT":
            raise
        raise DeadlineExceeded(
            f"cannot complete the query: it took longer than {QUERY_S:g} s; narrow it down",
            code="archive.query_timeout",
        ) from problem


class Conditions:
    """Parts of a `where` clause, with their values.

    >>> conditions = Conditions()
    >>> conditions.add("step >= ?", 3)
    >>> conditions.add("node = ?", "")
    >>> conditions.text, conditions.values
    ('(step >= ?)', [3])
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.values: list[Any] = []

    def add(self, part: str, value: Any) -> None:
        """Adds a condition with the value for each `?`; None and empty text are skipped."""
        if value is not None and value != "":
            self.add_all(part, *[value] * part.count("?"))

    def add_all(self, part: str, *values: Any) -> None:
        self._parts.append(f"({part})")
        self.values += values

    @property
    def text(self) -> str:
        """All conditions joined by `and`."""
        return " and ".join(self._parts) or "true"


def like_pattern(text: str) -> str:
    """Returns the pattern of `like ... escape '|'` for texts that contain this text; empty for an empty text.

    >>> like_pattern("50%")
    '%50|%%'
    """
    if not text:
        return ""
    for special in "|%_":
        text = text.replace(special, f"|{special}")
    return f"%{text}%"
