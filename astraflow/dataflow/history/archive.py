"""Archive of history, events, sampled trajectories and evaluations, on disk. It never delays a run.

A SQLite file next to the journal. Changes are queued in memory and written once a second, many per transaction, by one
thread; queries run in another thread with a connection of its own, after the changes queued before them are written.
Nothing waits for the disk: commits are in order but not synchronised, so a power failure loses the last seconds of what
people look at, and nothing that the run depends on.

The queue is bounded. When the disk is full or slow, its oldest changes are dropped, except those marked `must_keep`.
This is a problem of the run until writing works again; the log says how much was dropped.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from astraflow.archive.connection import is_damaged, lenient_text, open_read_only, run_query
from astraflow.contract.errors import CorruptData, InvalidInput, StorageFull, Unavailable
from astraflow.contract.records import Record, problem_record
from astraflow.dataflow.history.losses import Losses
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import sqlite_remedy
from astraflow.wire.errors import is_disk_full

T = TypeVar("T")
log = get_logger()

FLUSH_S = 1.0
"""Period at which the queue is written. Seconds."""

QUEUE_BYTES = 32 * 2**20
"""Bound of the queue in memory."""

UNREADABLE = ".unreadable"
"""Added to the name of a file that is set aside."""

_CHANGE_BYTES = 200
"""Memory that a queued change takes besides its payload."""

_SCHEMA_VERSION = 8
"""Grows when the content of a table changes. A file without a migration is set aside, since runs do not depend on
it."""

_SAMPLED_GROUPS = """
create table if not exists sampled_groups (
    policy text not null, group_id text not null, flow text not null, prompt text not null, step integer,
    version integer, rank integer, trajectories integer not null, size_bytes integer not null, ordinal integer not null,
    primary key (policy, group_id)
) without rowid;
create index if not exists sampled_groups_of_prompt on sampled_groups (prompt);
"""

_MIGRATIONS = {
    5: """
alter table events add column actor text not null default '';
alter table events add column reason text not null default '';
alter table events add column cause text not null default '';
alter table events add column severity text not null default 'info';
alter table events add column figures text not null default '{}';
update events set figures = json_object('text', message);
alter table events drop column message;
""",
    6: "",
    7: _SAMPLED_GROUPS  # noqa: S608 (a constant)
    + "insert into sampled_groups select policy, group_id, flow, '', max(step), null, null, count(*), "
    "sum(size_bytes), min(ordinal) from samples group by policy, group_id;",
}
"""Changes of a file of an older version to the next, by the older version."""

_SCHEMA = f"""
create table if not exists seconds (sequence integer primary key, body blob not null);
create table if not exists minutes (sequence integer primary key, body blob not null);
create table if not exists events (
    ordinal integer primary key, at real not null, kind text not null, subject text not null, repeats integer not null,
    actor text not null, reason text not null, cause text not null, severity text not null, figures text not null
);
create table if not exists samples (
    ordinal integer primary key, policy text not null, flow text not null, group_id text not null, task text not null,
    node text not null, at real not null, step integer, outcome text not null, reward real, is_truncated integer not
    null, failure text, size_bytes integer not null, body blob not null, prompt_text text not null,
    completion_text text not null, ending text not null default '', role text not null default '',
    reward_terms text not null default '{{}}', tokens_body blob not null default x'',
    call_outcomes text not null default '{{}}', calls_body blob not null default x'', batched_at real, trained_at real
);
{_SAMPLED_GROUPS}
create index if not exists samples_of_group on samples (policy, group_id);
create index if not exists samples_of_step on samples (step);
create table if not exists rounds (round integer primary key, body blob not null);
create table if not exists training_steps (
    policy text not null, step integer not null, body blob not null, primary key (policy, step)
) without rowid;
"""


@dataclass(frozen=True, slots=True)
class _Change:
    statement: str
    values: tuple[Any, ...]
    size_bytes: int
    must_keep: bool

    def resolved_values(self) -> tuple[Any, ...]:
        """Returns the values, calling those that were left to the writer's thread."""
        return tuple(value() if callable(value) else value for value in self.values)


class Archive:
    """One file with one writing and one reading thread.

    queued ──once a second──► written          query ──► queue written ──► answered
       └─queue too large─► dropped and reported

    `run()` writes until cancelled; `close()` writes the remaining changes.
    """

    def __init__(self, path: Path, *, clock: Clock, starts_empty: bool = False) -> None:
        """starts_empty: delete the existing file.

        Raises: InvalidInput for a path that cannot be written, StorageFull, Unavailable while it is locked.
        """
        self._path = path
        self._clock = clock
        self.losses = Losses()
        """Rows and frames that could not be written, read or sent."""
        self._set_aside: Record | None = None
        """Problem of a damaged file that was set aside; None if there was none."""
        self._use_lock = threading.Lock()
        """Held by a query, and while the file is replaced."""
        self._database = self._opened(starts_empty=starts_empty)
        self._read_connection = open_read_only(path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="archive-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="archive-reader")
        self._queue: list[_Change] = []
        self._queued_bytes = 0
        self._dropped = 0
        self._failure = ""
        self._damage: sqlite3.DatabaseError | None = None
        """Error of a query that found the file damaged; the next write replaces the file."""
        self._flush: asyncio.Future[None] | None = None
        self._write_lock = asyncio.Lock()

    @property
    def directory(self) -> Path:
        """Folder of the file."""
        return self._path.parent

    @property
    def problem(self) -> Record | None:
        """Problem of the archive; None when there is none."""
        if not self._failure and not self._dropped:
            return self._set_aside
        error = self._failure or f"{str(self._path)!r} is written too slowly"
        return problem_record(
            "archive_unwritable", "", error=error, **({"dropped": self._dropped} if self._dropped else {})
        )

    def put(self, statement: str, *values: Any, size_bytes: int = 0, must_keep: bool = False) -> None:
        """Queues a change.

        values: a function is called when the change is written, in the writer's thread, possibly more than once.
        size_bytes: memory that the change takes. must_keep: the change may wait without limit, but is not dropped.
        """
        change = _Change(statement, values, size_bytes + _CHANGE_BYTES, must_keep)
        self._queue.append(change)
        self._queued_bytes += change.size_bytes
        if self._queued_bytes > QUEUE_BYTES:
            self._drop_oldest()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Returns written rows; none if the file is damaged, which is then replaced. Meant for start-up: it blocks."""
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.DatabaseError as problem:
            if not is_damaged(problem):
                raise _explained(problem, self._path) from problem
            self._replace(problem)
            return self._database.execute(query, values).fetchall()

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Runs a query over everything queued so far, in the reader's thread.

        Raises: DeadlineExceeded when it takes too long; CorruptData when the file is damaged, which is then replaced.
        """
        await self.flush()
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._query, query)

    async def flush(self) -> None:
        """Writes the queue; on failure the changes stay queued and the failure is reported as the problem."""
        self._flush = asyncio.ensure_future(self._write_queue())
        await asyncio.shield(self._flush)

    async def run(self) -> None:
        """Writes once a second until cancelled."""
        try:
            while True:
                await self._clock.sleep(FLUSH_S)
                await self.flush()
        finally:
            if self._flush is not None:
                await asyncio.wait({self._flush})

    def close(self) -> None:
        """Writes the queue and closes the file; it blocks."""
        try:
            self._writer.submit(self._write, self._queue).result()
        except (OSError, sqlite3.Error) as problem:
            log.error("archive_closed_incomplete", path=str(self._path), problem=str(problem), entries=len(self._queue))
        self._writer.shutdown()
        self._reader.shutdown()
        self._read_connection.close()
        self._database.close()

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        with self._use_lock:
            try:
                return run_query(self._read_connection, query)
            except sqlite3.DatabaseError as problem:
                if not is_damaged(problem):
                    raise
                self._damage = problem
                raise CorruptData(
                    f"cannot read {str(self._path)!r}: {problem}; the file is set aside, and a new one begins",
                    code="archive.damaged",
                ) from problem

    def _opened(self, *, starts_empty: bool) -> sqlite3.Connection:
        if starts_empty:
            _remove(self._path)
        try:
            return _prepared(self._path)
        except sqlite3.OperationalError as problem:
            raise _explained(problem, self._path) from problem
        except sqlite3.DatabaseError as problem:
            self._keep_aside(problem)
            return _prepared(self._path)
        except OSError as problem:
            raise _explained(problem, self._path) from problem

    def _keep_aside(self, error: Exception) -> None:
        """Renames an unusable file, so that the run starts with a new one instead of stopping: runs do not depend on
        it."""
        aside = self._path.with_name(f"{self._path.stem}{UNREADABLE}{self._path.suffix}")
        log.error("archive_set_aside", path=str(self._path), aside=str(aside), problem=str(error))
        self._path.replace(aside)
        _remove(self._path)
        self._set_aside = problem_record(
            "archive_set_aside", "", path=str(self._path), error=str(error), aside=aside.name
        )

    async def _write_queue(self) -> None:
        async with self._write_lock:
            changes, self._queue, self._queued_bytes = self._queue, [], 0
            if not changes and self._damage is None:
                return
            try:
                await asyncio.get_running_loop().run_in_executor(self._writer, self._write, changes)
            except (OSError, sqlite3.Error) as problem:
                self._put_back(changes)
                self._fail(problem)
            else:
                self._recover()

    def _write(self, changes: Sequence[_Change]) -> None:
        """Writes the changes; a damaged file is replaced first. Raises: OSError, sqlite3.Error."""
        if self._damage is not None:
            self._replace(self._damage)
        try:
            self._execute(changes)
        except sqlite3.DatabaseError as problem:
            if not is_damaged(problem):
                raise
            self._replace(problem)
            self._execute(changes)

    def _replace(self, problem: sqlite3.DatabaseError) -> None:
        with self._use_lock:
            self._read_connection.close()
            self._database.close()
            self._keep_aside(problem)
            self._database = _prepared(self._path)
            self._read_connection = open_read_only(self._path)
            self._damage = None

    def _execute(self, changes: Sequence[_Change]) -> None:
        with self._database:
            for change in changes:
                values = self._writable_values(change)
                if values is not None:
                    self._database.execute(change.statement, values)

    def _writable_values(self, change: _Change) -> tuple[Any, ...] | None:
        """Returns the values of a change; None if it can never be written; it is then left out and not retried."""
        try:
            values = change.resolved_values()
            for value in values:
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise ValueError(f"{value} does not fit into a 64-bit column")
                if isinstance(value, str):
                    value.encode()
        except Exception as problem:  # protobuf raises errors of several types for values that a message cannot hold
            self.losses.add("row_written", problem, path=str(self._path))
            return None
        return values

    def _put_back(self, changes: list[_Change]) -> None:
        self._queue = changes + self._queue
        self._queued_bytes = sum(change.size_bytes for change in self._queue)
        if self._queued_bytes > QUEUE_BYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drops the oldest changes, down to half of the bound, so that this happens rarely."""
        remaining: list[_Change] = []
        excess_bytes = self._queued_bytes - QUEUE_BYTES // 2
        for change in self._queue:
            if excess_bytes > 0 and not change.must_keep:
                excess_bytes -= change.size_bytes
                self._dropped += 1
            else:
                remaining.append(change)
        self._queue = remaining
        self._queued_bytes = sum(change.size_bytes for change in remaining)
        log.warning("archive_changes_dropped", path=str(self._path), dropped=self._dropped)

    def _fail(self, problem: Exception) -> None:
        if not self._failure:
            log.error("archive_write_failed", path=str(self._path), problem=str(problem))
        if is_disk_full(problem):
            self._failure = f"cannot write {str(self._path)!r}: the disk is full; free some space"
        else:
            remedy = sqlite_remedy(problem) or "stop the run and move the file to another folder"
            self._failure = f"cannot write {str(self._path)!r}: {problem}; {remedy}"

    def _recover(self) -> None:
        if self._failure or self._dropped:
            log.warning("archive_recovered", path=str(self._path), dropped=self._dropped)
        self._failure, self._dropped = "", 0


def _prepared(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, check_same_thread=False)
    database.text_factory = lenient_text
    try:
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = normal")
        database.execute("pragma wal_autocheckpoint = 256")
        database.execute("pragma journal_size_limit = 1048576")
        (version,) = database.execute("pragma user_version").fetchone()
        (tables,) = database.execute("select count(*) from sqlite_master").fetchone()
        while tables and version in _MIGRATIONS:
            migration = f"begin; {_MIGRATIONS[version]} pragma user_version = {version + 1}; commit;"
            database.executescript(migration)
            version += 1
        if tables and version != _SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"schema {version} instead of {_SCHEMA_VERSION}")
        database.executescript(_SCHEMA)
        database.execute(f"pragma user_version = {_SCHEMA_VERSION}")
    except BaseException:
        database.close()
        raise
    return database


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _explained(problem: Exception, path: Path) -> Exception:
    if is_disk_full(problem):
        return StorageFull(
            f"cannot open {str(path)!r}: the disk is full; free some space or choose another run directory",
            code="archive.disk_full",
        )
    remedy = sqlite_remedy(problem, is_start=True)
    if remedy is not None:
        return Unavailable(f"cannot open {str(path)!r}: {problem}; {remedy}", code="archive.outage")
    return InvalidInput(
        f"cannot use {str(path)!r} as an archive: {problem}; choose another run directory", code="archive.unusable"
    )
