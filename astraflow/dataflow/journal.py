"""Durability: every change of state goes through one SQLite file, in order, many changes to a commit.

The service's memory is the authority while it runs; the journal is what it is rebuilt from. Changes are committed in
the order they were made, so after a crash the file holds a prefix of the run's history, and whoever waited for
`durable()` before answering answered about something inside that prefix. Small states (cursors, counters) are not
written change by change: they are dumped when a commit is collected, which makes them exact for that prefix.
A state that grows with the data is kept in rows instead, and a commit takes the changed ones (`rows.py`).
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput, StorageFull
from astraflow.contract.tasks import Json
from astraflow.runtime.logs import get_logger
from astraflow.wire.errors import is_disk_full

log = get_logger()

RETRY_S = 1.0
"""Pause before a failed commit is tried again."""

_SCHEMA_VERSION = 2
"""Grows when the tables change; a run is taken up by the releases that share it."""

_SCHEMA = """
create table if not exists states (name text primary key, body text not null) without rowid;
create table if not exists rows (
    owner text not null, key integer not null, body text not null, primary key (owner, key)
) without rowid;
create table if not exists groups (id text primary key, flow text not null, body text not null) without rowid;
create table if not exists episodes (
    task text primary key, group_id text not null, node text not null, body blob not null
);
create index if not exists episodes_by_group on episodes (group_id);
create table if not exists routed (
    policy text not null, group_id text not null, batch text, is_trained integer not null,
    primary key (policy, group_id)
) without rowid;
create table if not exists batches (policy text primary key, id text not null, version integer not null) without rowid;
create table if not exists reports (sequence integer primary key, body blob not null);
create table if not exists events (ordinal integer primary key, body blob not null);
"""


class Journal:
    """One SQLite file in WAL mode with full synchronisation; one commit at a time, in a thread.

    An `async with` is not enough of a life for it: `run()` commits until cancelled, then commits what is left.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = _open(path)
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._states: dict[str, Callable[[], Mapping[str, Json]]] = {}
        self._rows: dict[str, Callable[[], Mapping[int, Json]]] = {}
        self._ordinal = 0
        self._committed = 0
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self.failure: AstraFlowError | None = None
        """Why commits fail at present; None when they work. Nothing new should be begun while it is set."""

    def keep_state(self, name: str, dump: Callable[[], Mapping[str, Json]]) -> None:
        """Have `dump()` saved under `name` with every commit."""
        self._states[name] = dump

    def keep_rows(self, owner: str, changed: Callable[[], Mapping[int, Json]]) -> None:
        """Have the rows that `changed()` tells of saved with every commit; None deletes one."""
        self._rows[owner] = changed

    def saved_rows(self, owner: str) -> dict[int, Any]:
        """What was last committed for `owner`."""
        return {
            key: json.loads(body) for key, body in self.rows("select key, body from rows where owner = ?", (owner,))
        }

    def saved_state(self, name: str) -> dict[str, Any] | None:
        """What was last committed under `name`."""
        row = self._database.execute("select body from states where name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else None

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Read what is committed. Meant for start-up: it blocks."""
        return self._database.execute(query, values).fetchall()

    def put(self, statement: str, *values: Any) -> None:
        """Add a change; it is durable when a `durable()` that began later returns."""
        self._pending.append((statement, values))
        self.touch()

    def touch(self) -> None:
        """Have the states committed though no row changed."""
        self._ordinal += 1
        self._wake.set()

    async def durable(self) -> None:
        """Wait until everything put so far is on disk. Raises: StorageFull while the disk is full."""
        target = self._ordinal
        while self._committed < target:
            if self.failure is not None:
                raise self.failure
            changed = self._changed
            await changed.wait()

    async def run(self) -> None:
        """Commit until cancelled, then once more, and close."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._commit()
        finally:
            if self._writing is not None:
                await asyncio.wait({self._writing})
            self._last_commit()
            self._database.close()

    async def _commit(self) -> None:
        """One transaction of all that is pending; on failure it stays pending and is tried again."""
        ordinal, changes, states = self._ordinal, *self._collected()
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, changes, states))
        try:
            await asyncio.shield(self._writing)
        except sqlite3.Error as problem:
            self._pending = changes + self._pending
            self._fail(problem)
            await asyncio.sleep(RETRY_S)
            self._wake.set()
        else:
            if self.failure is not None:
                log.warning("journal_recovered", path=str(self._path))
            self.failure = None
            self._committed = ordinal
            self._announce()

    def _last_commit(self) -> None:
        try:
            self._write(*self._collected())
        except sqlite3.Error as problem:
            self._fail(problem)

    def _collected(self) -> tuple[list[tuple[str, tuple[Any, ...]]], dict[str, str]]:
        changes, self._pending = self._pending + self._changed_rows(), []
        return changes, {name: json.dumps(dict(dump())) for name, dump in self._states.items()}

    def _changed_rows(self) -> list[tuple[str, tuple[Any, ...]]]:
        """As changes, so that they outlive a commit that fails."""
        return [
            ("delete from rows where owner = ? and key = ?", (owner, key))
            if row is None
            else ("insert or replace into rows values (?, ?, ?)", (owner, key, json.dumps(row)))
            for owner, changed in self._rows.items()
            for key, row in changed().items()
        ]

    def _write(self, changes: list[tuple[str, tuple[Any, ...]]], states: Mapping[str, str]) -> None:
        with self._database:
            for statement, values in changes:
                self._database.execute(statement, values)
            self._database.executemany("insert or replace into states values (?, ?)", list(states.items()))

    def _fail(self, problem: sqlite3.Error) -> None:
        if self.failure is None:
            log.error("journal_failed", problem=str(problem), path=str(self._path))
        self.failure = _explained(problem, self._path)
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _explained(problem: sqlite3.Error, path: Path) -> AstraFlowError:
    if is_disk_full(problem):
        return StorageFull(f"the disk under {path} is full: free some space, the run goes on by itself")
    return CorruptData(f"{path} cannot be written: {problem}")


def _open(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, check_same_thread=False)
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = full")
        _check_version(database, path)
        database.executescript(_SCHEMA)
        database.execute(f"pragma user_version = {_SCHEMA_VERSION}")
    except (OSError, sqlite3.Error) as problem:
        if is_disk_full(problem):
            raise StorageFull(f"no room for {path}: free some space or choose another run directory") from problem
        raise InvalidInput(f"{path} cannot be used as a journal ({problem}): choose another run directory") from problem
    return database


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("pragma user_version").fetchone()
    (tables,) = database.execute("select count(*) from sqlite_master").fetchone()
    if tables and version != _SCHEMA_VERSION:
        raise InvalidInput(f"{path} was written by another release (schema {version}, this one has {_SCHEMA_VERSION})")
