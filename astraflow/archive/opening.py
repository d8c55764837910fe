"""The archive's file: where it is, a connection that only reads it, and questions that do not take for ever."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from astraflow.contract.errors import DeadlineExceeded

T = TypeVar("T")

PLACE = Path("dataflow", "history.sqlite")
"""Of the file, in the folder of a run."""

QUERY_S = 5.0
"""A question that takes longer is given up."""


def connected_to_read(path: Path, *, is_settled: bool = False) -> sqlite3.Connection:
    """A connection that cannot change the file. is_settled: nobody writes it, and all that was written is in it."""
    how = "mode=ro&immutable=1" if is_settled else "mode=ro"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, check_same_thread=False)
    connection.execute("pragma query_only = on")
    return connection


def reopened(path: Path) -> sqlite3.Connection:
    """The same of a run that may have ended: without a log of changes, SQLite then makes nothing beside the file."""
    return connected_to_read(path, is_settled=not path.with_name(f"{path.name}-wal").exists())


def answered(database: sqlite3.Connection, question: Callable[[sqlite3.Connection], T]) -> T:
    """The answer to a question. Raises: DeadlineExceeded when it takes too long."""
    give_up_at = time.monotonic() + QUERY_S
    database.set_progress_handler(lambda: time.monotonic() > give_up_at, 10_000)
    try:
        return question(database)
    except sqlite3.OperationalError as problem:
        if getattr(problem, "sqlite_errorname", "") != "SQLITE_INTERRUPT":
            raise
        raise DeadlineExceeded(f"the answer was not found within {QUERY_S:g} s: ask for less") from problem
