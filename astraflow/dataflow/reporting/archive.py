"""What is only looked at, on disk: history, events, sampled trajectories, evaluations. Never in the way of a run.

A SQLite file of its own beside the journal. Changes are queued in memory and written once a second, many to a
transaction, by one thread; whoever asks reads through another thread with a connection of its own, after what was
queued before the question is written. Nobody waits for the disk: commits are in order but not synchronised, so what a
power failure takes is the last seconds of what people look at, and nothing that the run is made of.

The queue is bounded. When the disk is full or slow, its oldest part is dropped, except for what is marked as kept. That
is a trouble of the run until writing works again; how much was dropped is in the log.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from astraflow.archive.opening import answered, connected_to_read
from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.dataflow.reporting.losses import Losses
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.wire.errors import is_disk_full

T = TypeVar("T")
log = get_logger()

FLUSH_S = 1.0
"""Period at which the queue is written."""

QUEUE_BYTES = 32 * 2**20
"""What may wait in memory to be written."""

_CHANGE_BYTES = 200
"""What a queued change costs besides what it carries."""

_SCHEMA_VERSION = 1
"""Grows when what is in a table changes: a file of another version is set aside, since only looks depend on it."""

_SCHEMA = """
create table if not exists seconds (sequence integer primary key, body blob not null);
create table if not exists minutes (sequence integer primary key, body blob not null);
create table if not exists events (
    ordinal integer primary key, at real not null, kind text not null, subject text not null, message text not null,
    folded integer not null
);
create table if not exists samples (
    ordinal integer primary key, policy text not null, flow text not null, group_id text not null, task text not null,
    node text not null, at real not null, step integer, fate text not null, reward real, is_truncated integer not null,
    failure text, size_bytes integer not null, body blob not null, prompt_text text not null,
    completion_text text not null
);
create index if not exists samples_of_group on samples (policy, group_id);
create index if not exists samples_of_step on samples (step);
create table if not exists rounds (round integer primary key, body blob not null);
"""


@dataclass(frozen=True, slots=True)
class _Change:
    statement: str
    values: tuple[Any, ...]
    size_bytes: int
    is_kept: bool

    def made(self) -> tuple[Any, ...]:
        """The values, those made that were left to the writer's thread."""
        return tuple(value() if callable(value) else value for value in self.values)


class Archive:
    """One file, one thread that writes, one that reads.

    queued ──once a second──► written          asked ──► queue written ──► answered
       └─queue too large─► dropped, and said

    `run()` writes until cancelled, then writes what is left and closes.
    """

    def __init__(self, path: Path, *, clock: Clock, begins_anew: bool = False) -> None:
        """begins_anew: forget what the file holds.

        Raises: InvalidInput for a place that cannot be written, StorageFull.
        """
        self._path = path
        self._clock = clock
        self.losses = Losses()
        """What could not be written, read or sent of what is only looked at."""
        self._database = _opened(path, begins_anew=begins_anew)
        self._reading = connected_to_read(path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="archive-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="archive-reader")
        self._queue: list[_Change] = []
        self._queued_bytes = 0
        self._dropped = 0
        self._failure = ""
        self._flush: asyncio.Future[None] | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def trouble(self) -> str | None:
        """What is wrong with it now, as a sentence for people; None when all is well."""
        if not self._failure and not self._dropped:
            return None
        what = self._failure or f"{self._path} is written too slowly for what there is to look at"
        lost = ", and the oldest of it is being dropped" if self._dropped else ""
        return f"{what}; the run goes on, but new history, events and sampled trajectories wait in memory{lost}"

    def put(self, statement: str, *values: Any, size_bytes: int = 0, is_kept: bool = False) -> None:
        """Queue a change.

        values: one that is a function is called when it is written, in the writer's thread, maybe more than once.
        size_bytes: what the change holds in memory. is_kept: it may wait for ever, but not be dropped.
        """
        change = _Change(statement, values, size_bytes + _CHANGE_BYTES, is_kept)
        self._queue.append(change)
        self._queued_bytes += change.size_bytes
        if self._queued_bytes > QUEUE_BYTES:
            self._shed()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Read what is written. Meant for start-up: it blocks."""
        return self._database.execute(query, values).fetchall()

    async def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Answer a question about everything queued so far, in the reader's thread.

        Raises: DeadlineExceeded when it takes too long.
        """
        await self.flush()
        return await asyncio.get_running_loop().run_in_executor(self._reader, answered, self._reading, question)

    async def flush(self) -> None:
        """Write what is queued; when that fails it stays queued, and the failure becomes the trouble."""
        self._flush = asyncio.ensure_future(self._write_queue())
        await asyncio.shield(self._flush)

    async def run(self) -> None:
        """Write once a second until cancelled, then once more, and close."""
        try:
            while True:
                await self._clock.sleep(FLUSH_S)
                await self.flush()
        finally:
            if self._flush is not None:
                await asyncio.wait({self._flush})
            self.close()

    def close(self) -> None:
        """Write what is queued and let the file go; it blocks."""
        try:
            self._writer.submit(self._write, self._queue).result()
        except (OSError, sqlite3.Error) as problem:
            log.error("archive_left_incomplete", path=str(self._path), problem=str(problem), entries=len(self._queue))
        self._writer.shutdown()
        self._reader.shutdown()
        self._reading.close()
        self._database.close()

    async def _write_queue(self) -> None:
        async with self._one_at_a_time:
            changes, self._queue, self._queued_bytes = self._queue, [], 0
            if not changes:
                return
            try:
                await asyncio.get_running_loop().run_in_executor(self._writer, self._write, changes)
            except (OSError, sqlite3.Error) as problem:
                self._put_back(changes)
                self._fail(problem)
            else:
                self._recover()

    def _write(self, changes: Sequence[_Change]) -> None:
        with self._database:
            for change in changes:
                values = self._made(change)
                if values is not None:
                    self._database.execute(change.statement, values)

    def _made(self, change: _Change) -> tuple[Any, ...] | None:
        """The values of a change; None for one that can never be written, which is left out, not tried again."""
        try:
            values = change.made()
            for value in values:
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise ValueError(f"{value} is too large for a row")
                if isinstance(value, str):
                    value.encode()
        except Exception as problem:  # a protobuf message refuses what it cannot hold with errors of several types
            self.losses.add("row_written", problem, path=str(self._path))
            return None
        return values

    def _put_back(self, changes: list[_Change]) -> None:
        self._queue = changes + self._queue
        self._queued_bytes = sum(change.size_bytes for change in self._queue)
        if self._queued_bytes > QUEUE_BYTES:
            self._shed()

    def _shed(self) -> None:
        """Drop the oldest, down to half of what may wait, so that this is done rarely."""
        left: list[_Change] = []
        excess_bytes = self._queued_bytes - QUEUE_BYTES // 2
        for change in self._queue:
            if excess_bytes > 0 and not change.is_kept:
                excess_bytes -= change.size_bytes
                self._dropped += 1
            else:
                left.append(change)
        self._queue = left
        self._queued_bytes = sum(change.size_bytes for change in left)
        log.warning("archive_sheds", path=str(self._path), dropped=self._dropped)

    def _fail(self, problem: Exception) -> None:
        if not self._failure:
            log.error("archive_failed", path=str(self._path), problem=str(problem))
        if is_disk_full(problem):
            self._failure = f"the disk under {self._path} is full: free some space"
        else:
            self._failure = f"{self._path} cannot be written ({problem}): with the run stopped, move it away"

    def _recover(self) -> None:
        if self._failure or self._dropped:
            log.warning("archive_recovered", path=str(self._path), dropped=self._dropped)
        self._failure, self._dropped = "", 0


def _opened(path: Path, *, begins_anew: bool) -> sqlite3.Connection:
    if begins_anew:
        _remove(path)
    try:
        return _prepared(path)
    except sqlite3.OperationalError as problem:
        raise _explained(problem, path) from problem
    except sqlite3.DatabaseError as problem:
        _set_aside(path, problem)
        return _prepared(path)
    except OSError as problem:
        raise _explained(problem, path) from problem


def _prepared(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = normal")
        database.execute("pragma wal_autocheckpoint = 256")
        database.execute("pragma journal_size_limit = 1048576")
        (version,) = database.execute("pragma user_version").fetchone()
        (tables,) = database.execute("select count(*) from sqlite_master").fetchone()
        if tables and version != _SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"it has schema {version}, this release has {_SCHEMA_VERSION}")
        database.executescript(_SCHEMA)
        database.execute(f"pragma user_version = {_SCHEMA_VERSION}")
    except BaseException:
        database.close()
        raise
    return database


def _set_aside(path: Path, problem: Exception) -> None:
    """Nothing but looks depends on the file: a run begins a new one rather than stop."""
    aside = path.with_name(f"{path.stem}.unreadable{path.suffix}")
    log.error("archive_set_aside", path=str(path), aside=str(aside), problem=str(problem))
    path.replace(aside)
    _remove(path)


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _explained(problem: Exception, path: Path) -> Exception:
    if is_disk_full(problem):
        return StorageFull(f"no room for {path}: free some space or choose another run directory")
    return InvalidInput(f"{path} cannot be used for what is looked at ({problem}): choose another run directory")
