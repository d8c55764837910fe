"""Durability: writes every change of state to disk in order, many changes per commit.

The service's memory is authoritative while it runs; the journal is what it is rebuilt from. The journal consists of a
SQLite file for state, and append-only segments (`segments.py`) for the payload of results, which the file points to.
Changes are committed in the order in which they were made, so after a crash the journal holds a prefix of the run's
history, and every answer that waited for `wait_durable()` is inside that prefix. Small states (cursors, counters) are
not written change by change: they are dumped when a commit is collected, which makes them exact for that prefix. One
that returns the same object again is unchanged, and is not written again. A state that grows with the data is stored in
rows, and a commit writes the changed ones (`prompt_rows.py`).
"""

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from astraflow.archive.set_aside import DamagedRecord
from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput, StorageFull
from astraflow.contract.values import Json
from astraflow.dataflow.storage.segments import RecordLocation, SegmentFiles, SegmentMap
from astraflow.runtime.locks import exclusive_lock
from astraflow.runtime.logs import get_logger
from astraflow.wire.errors import is_disk_full

log = get_logger()

RETRY_S = 1.0
"""Pause before a failed commit is tried again. Seconds."""

_SCHEMA_VERSION = 14
"""Grows when the tables or their bodies change; only releases with the same version can resume a run."""

_SCHEMA = """
create table if not exists states (name text primary key, body text not null) without rowid;
create table if not exists rows (
    owner text not null, key integer not null, body text not null, primary key (owner, key)
) without rowid;
create table if not exists groups (id text primary key, flow text not null, body text not null) without rowid;
create table if not exists payloads (
    number integer primary key, segment integer not null, offset integer not null, length integer not null
);
create table if not exists unfinished (
    task text primary key, group_id text not null, attempt integer not null, partial blob
);
create table if not exists routed (
    policy text not null, group_id text not null, batch text, is_trained integer not null,
    primary key (policy, group_id)
);
create table if not exists batches (id text primary key, policy text not null, version integer not null);
create table if not exists evaluations (round integer primary key, body blob not null);
create table if not exists credentials (
    id text primary key, kind text not null, state text not null, role text not null, name text not null,
    pool text not null, until real not null, digest text not null, key text not null,
    origin text not null, is_reusable integer not null, uses integer not null, most_uses integer not null
) without rowid;
create table if not exists acts (ordinal integer primary key, body blob not null);
"""

_TABLES = re.findall(r"create table if not exists (\w+)", _SCHEMA)

_SELECT_LOCATIONS = "select number, segment, offset, length from payloads order by number"
_DELETE_PAYLOAD = "delete from payloads where number = ?"
_DELETE_STATE = "delete from states where name = ?"
_DELETE_ROW = "delete from rows where owner = ? and key = ?"

T = TypeVar("T")


@dataclass(slots=True)
class _Changes:
    """Changes of one commit, carried out in this order: payloads, statements that point to them, removals."""

    payloads: list[tuple[RecordLocation, bytes]] = field(default_factory=list)
    moves: list[list[tuple[RecordLocation, RecordLocation]]] = field(default_factory=list)
    """Old and new locations of the records of each compaction: a later compaction may move the same record again."""
    statements: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    unneeded_segments: list[int] = field(default_factory=list)
    """Segments without references after this commit."""

    def followed_by(self, later: "_Changes") -> "_Changes":
        """Returns both, in order."""
        return _Changes(
            payloads=self.payloads + later.payloads,
            moves=self.moves + later.moves,
            statements=self.statements + later.statements,
            unneeded_segments=self.unneeded_segments + later.unneeded_segments,
        )


class Journal:
    """SQLite file in WAL mode with full synchronisation, and its segments; one commit at a time, in a thread.

    `run()` commits until it is cancelled, then commits the remaining changes.
    """

    is_durable = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = _open(path)
        self._files = SegmentFiles(path.parent / "payload")
        self.damaged: dict[tuple[str, str], DamagedRecord] = {}
        """Committed records that could not be read, by kind and key."""
        self._rebuild_damaged_keys()
        self._pending = _Changes()
        self._ordinal = 0
        self._wake = asyncio.Event()
        locations = self._payload_locations()
        self._map = self._saved_map(locations)
        self._last_payload = max(locations, default=0)
        self._new_payloads: dict[int, bytes] = {}
        """Payloads that no commit has collected yet."""
        self._in_flight: _Changes | None = None
        """Changes of the commit that is being written; None once it succeeded, or they are pending again."""
        self._unremoved: list[int] = []
        """Segments without references that could not be removed. Only `_write` uses it."""
        self._states: dict[str, Callable[[], Mapping[str, Json]]] = {}
        self._saved: dict[str, Mapping[str, Json]] = {}
        """States of the latest successful commit."""
        self._rows: dict[str, Callable[[], Mapping[int, Json]]] = {}
        self._committed = 0
        self._changed = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self.failure: AstraFlowError | None = None
        """Error of the latest commits; None when commits work. Callers begin nothing new while it is set."""

    def register_state(self, name: str, dump: Callable[[], Mapping[str, Json]]) -> None:
        """Registers `dump()`, whose result every commit saves under `name`, unless it is the object saved last."""
        self._states[name] = dump

    def register_rows(self, owner: str, changed_rows: Callable[[], Mapping[int, Json]]) -> None:
        """Registers `changed_rows()`, whose result every commit saves for `owner`; None deletes a row.

        The previous provider of this owner is called once more, so that rows may change providers.
        """
        self._pending.statements += self._changed_rows(owner)
        self._rows[owner] = changed_rows
        self.touch()

    def delete_rows(self, owner: str) -> None:
        """Deletes all rows of `owner` and its provider."""
        self._rows.pop(owner, None)
        self.put("delete from rows where owner = ?", owner)

    def saved_rows(self, owner: str) -> dict[int, Any]:
        """Returns the rows that were last committed for `owner`, without those that cannot be read."""
        select = "select owner, key, body from rows where owner = ?"
        rows = self.decoded(select, _row, (owner,), what="row", delete=_DELETE_ROW, keys=2)
        return dict(rows)

    def saved_state(self, name: str) -> dict[str, Any] | None:
        """Returns the state that was last committed under `name`, None if there is none that can be read."""
        select = "select name, body from states where name = ?"
        states = self.decoded(select, lambda row: _object(row[1]), (name,), what="state", delete=_DELETE_STATE)
        return next(iter(states), None)

    def load_state(self, name: str, load: Callable[[dict[str, Any]], None]) -> None:
        """Loads the state that was last committed under `name`, if any. One that cannot be loaded is set aside.

        Raises: InvalidInput of `load`, for a state that a person has to look at.
        """
        saved = self.saved_state(name)
        if saved is None:
            return
        try:
            load(saved)
        except InvalidInput:
            raise
        except Exception as problem:  # a state that was damaged may have any shape
            self.set_aside("state", name, problem, body=json.dumps(saved))

    def decoded(
        self,
        query: str,
        decode: Callable[[tuple[Any, ...]], T],
        values: tuple[Any, ...] = (),
        *,
        what: str,
        delete: str,
        keys: int = 1,
    ) -> list[T]:
        """Returns the decoded rows of a query, whose first columns are the key and whose last one is the body.

        A row that cannot be decoded is set aside: it is deleted with `delete`, which takes the key, and is in
        `damaged`.
        keys: number of key columns. Meant for start-up: it blocks. Raises: InvalidInput when the file is damaged.
        """
        decoded: list[T] = []
        for row in self.rows(query, values):
            try:
                decoded.append(decode(row))
            except Exception as problem:  # damaged bytes fail in protobuf, JSON and contract types
                self.set_aside(what, "/".join(map(str, row[:keys])), problem, body=row[-1])
                self.put(delete, *row[:keys])
        return decoded

    def set_aside(self, what: str, key: object, problem: Exception, *, body: object = b"") -> None:
        """Notes that a record could not be read and is not used."""
        text = str(problem) if isinstance(problem, AstraFlowError) else f"{type(problem).__name__}: {problem}"
        raw = body if isinstance(body, bytes) else str(body).encode()
        self.damaged[what, str(key)] = DamagedRecord(what=what, key=str(key), problem=text, body=raw)
        log.error("record_set_aside", what=what, key=str(key), problem=text)

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Returns committed rows of a query. Meant for start-up: it blocks. Raises: InvalidInput when the file is
        damaged."""
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.DatabaseError as problem:
            raise InvalidInput(
                f"cannot read {str(self._path)!r}: it is damaged ({problem}); restore the folder of dataflow from a "
                "backup, or start a new run",
                code="journal.damaged_file",
            ) from problem

    def put(self, statement: str, *values: Any) -> None:
        """Adds a change; it is durable when a later `wait_durable()` returns."""
        self._pending.statements.append((statement, values))
        self.touch()

    def store_payload(self, body: bytes) -> int:
        """Stores these bytes until they are dropped; returns their number."""
        self._last_payload += 1
        self._new_payloads[self._last_payload] = body
        self.touch()
        return self._last_payload

    def drop_payload(self, number: int) -> None:
        """Drops a payload; a payload that no commit has collected is never written."""
        if self._new_payloads.pop(number, None) is None:
            self._map.drop(number)
            self.put(_DELETE_PAYLOAD, number)

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Yields all committed payloads by number; sets damaged ones aside. Meant for start-up: it blocks."""
        for number, location in self._payload_locations().items():
            try:
                body = self._files.read(location)
            except CorruptData as problem:
                self.set_aside("result", number, problem)
                self.drop_payload(number)
            else:
                yield number, body

    def _payload_locations(self) -> dict[int, RecordLocation]:
        return dict(self.decoded(_SELECT_LOCATIONS, _location, what="location", delete=_DELETE_PAYLOAD))

    def _rebuild_damaged_keys(self) -> None:
        """Writes all rows again if keys are damaged, so that rows and indexes agree; else a later commit would fail
        again and again. A row that repeats a key, or has none, is set aside."""
        findings = [text for (text,) in self._database.execute("pragma integrity_check(3)")]
        if findings == ["ok"]:
            return
        log.error("journal_keys_damaged", path=str(self._path), problem=findings[0])
        with self._database:
            for table in _TABLES:
                rows = self.rows(f"select * from {table} not indexed")  # noqa: S608  # a name of the schema
                self._database.execute(f"delete from {table}")  # noqa: S608  # the same
                for row in rows:
                    self._insert_again(table, row)

    def _insert_again(self, table: str, row: tuple[Any, ...]) -> None:
        statement = f"insert into {table} values ({', '.join('?' * len(row))})"  # noqa: S608  # a name of the schema
        try:
            self._database.execute(statement, row)
        except sqlite3.IntegrityError as problem:
            self.set_aside(f"row of {table}", row[0], problem, body=row[-1])

    def touch(self) -> None:
        """Requests a commit of the states although no row changed."""
        self._ordinal += 1
        self._wake.set()

    async def wait_durable(self) -> None:
        """Waits until everything put so far is on disk. Raises: StorageFull while the disk is full."""
        target = self._ordinal
        while self._committed < target:
            if self.failure is not None:
                raise self.failure
            changed = self._changed
            await changed.wait()

    async def run(self) -> None:
        """Commits until cancelled, then once more, and closes the files.

        After any other error there is no last commit: later changes without those that failed would leave a gap.
        """
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._commit()
        except asyncio.CancelledError:
            await self._settle_in_flight()
            self._last_commit()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Closes the files; changes since the last commit are lost, as in a crash. It may be called again."""
        self._files.close()
        self._database.close()

    async def _commit(self) -> None:
        """Commits all pending changes in one transaction; on failure they stay pending and are tried again."""
        ordinal, changes, states = self._ordinal, *self._collected()
        self._in_flight = changes
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, changes, _bodies(states)))
        try:
            await asyncio.shield(self._writing)
        except (OSError, sqlite3.Error) as problem:
            self._take_back(changes)
            self._fail(problem)
            await asyncio.sleep(RETRY_S)
            self._wake.set()
        else:
            if self.failure is not None:
                log.warning("journal_recovered", path=str(self._path))
            self.failure, self._in_flight = None, None
            self._saved |= states
            self._committed = ordinal
            self._announce()

    async def _settle_in_flight(self) -> None:
        """Waits for the commit that a cancellation left behind; if it failed, its changes are pending again.

        Raises: the error of that commit if it cannot be tried again.
        """
        if self._writing is None or self._in_flight is None:
            return
        await asyncio.wait({self._writing})
        problem = self._writing.exception()
        if problem is None:
            self._in_flight = None
        elif isinstance(problem, (OSError, sqlite3.Error)):
            self._take_back(self._in_flight)
        else:
            raise problem

    def _take_back(self, changes: _Changes) -> None:
        """Makes the changes of a failed commit pending again, before those that were made since."""
        self._pending, self._in_flight = changes.followed_by(self._pending), None

    def _last_commit(self) -> None:
        try:
            changes, states = self._collected()
            self._write(changes, _bodies(states))
        except (OSError, sqlite3.Error) as problem:
            self._fail(problem)

    def _collected(self) -> tuple[_Changes, dict[str, Mapping[str, Json]]]:
        self._place_payloads()
        self._compact()
        changes, self._pending = self._pending, _Changes()
        changes.statements += [statement for owner in self._rows for statement in self._changed_rows(owner)]
        changes.unneeded_segments += self._map.take_unneeded_segments()
        states = {name: dump() for name, dump in self._states.items()}
        return changes, {name: state for name, state in states.items() if state is not self._saved.get(name)}

    def _place_payloads(self) -> None:
        new, self._new_payloads = self._new_payloads, {}
        locations = self._map.append([(number, len(body)) for number, body in new.items()])
        for number, location in zip(new, locations, strict=True):
            self._pending.payloads.append((location, new[number]))
            self._pending.statements.append(("insert into payloads values (?, ?, ?, ?)", (number, *_columns(location))))

    def _compact(self) -> None:
        """Moves the remaining records of one segment that is mostly unused."""
        records = [(number, self._map.location(number)) for number in self._map.records_to_compact()]
        for number, _ in records:
            self._map.drop(number)
        new_locations = self._map.append([(number, old.length) for number, old in records])
        if records:
            old_locations = [old for _, old in records]
            self._pending.moves.append(list(zip(old_locations, new_locations, strict=True)))
        for (number, _), location in zip(records, new_locations, strict=True):
            self._pending.statements.append(
                (
                    "update payloads set segment = ?, offset = ?, length = ? where number = ?",
                    (*_columns(location), number),
                )
            )

    def _changed_rows(self, owner: str) -> list[tuple[str, tuple[Any, ...]]]:
        """Returns the changed rows as statements, so that they survive a failed commit; none without a provider."""
        return [
            ("delete from rows where owner = ? and key = ?", (owner, key))
            if row is None
            else ("insert or replace into rows values (?, ?, ?)", (owner, key, json.dumps(row)))
            for key, row in (self._rows[owner]() if owner in self._rows else {}).items()
        ]

    def _write(self, changes: _Changes, states: Mapping[str, str]) -> None:
        self._files.write(changes.payloads)
        for moves in changes.moves:
            self._files.write([(new, self._files.read(old)) for old, new in moves])
        with self._database:
            for statement, group in groupby(changes.statements, key=itemgetter(0)):
                self._database.executemany(statement, [values for _, values in group])
            self._database.executemany("insert or replace into states values (?, ?)", list(states.items()))
        self._remove(changes.unneeded_segments)

    def _remove(self, segments: list[int]) -> None:
        """Removes segments, or retains their numbers for the next commit.

        An error is only logged: the changes are committed by now, and must not be tried again.
        """
        is_first_failure = not self._unremoved
        self._unremoved += segments
        try:
            self._files.remove(self._unremoved)
        except OSError as problem:
            if is_first_failure:
                log.warning("journal_segments_not_removed", problem=str(problem), path=str(self._path))
        else:
            self._unremoved = []

    def _saved_map(self, locations: Mapping[int, RecordLocation]) -> SegmentMap:
        """Loads the map and removes unreferenced segments that a crash left. New records begin a new segment."""
        numbers = self._files.segment_numbers()
        pointed_to = {location.segment for location in locations.values()}
        saved = SegmentMap(locations.items(), first_free=max((*numbers, *pointed_to), default=0) + 1)
        self._files.remove(number for number in numbers if number not in pointed_to)
        return saved

    def _fail(self, problem: Exception) -> None:
        if self.failure is None:
            log.error("journal_failed", problem=str(problem), path=str(self._path))
        self.failure = _explained(problem, self._path)
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _text(raw: bytes) -> str | bytes:
    """Returns a text column, as bytes when it is damaged: decoding its row then fails, and that of others does not."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _row(row: tuple[Any, ...]) -> tuple[int, Any]:
    return int(row[1]), json.loads(row[2])


def _object(text: str) -> dict[str, Any]:
    """Returns a JSON object. Raises: ValueError."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _location(row: tuple[Any, ...]) -> tuple[int, RecordLocation]:
    """Returns number and location of a payload. Raises: ValueError for columns that are no position."""
    number, *position = row
    if not all(isinstance(value, int) and value >= 0 for value in position):
        raise ValueError(f"{position} is no position in a segment")
    segment, offset, length = position
    return number, RecordLocation(segment=segment, offset=offset, length=length)


def _bodies(states: Mapping[str, Mapping[str, Json]]) -> dict[str, str]:
    return {name: json.dumps(dict(state)) for name, state in states.items()}


def _columns(location: RecordLocation) -> tuple[int, int, int]:
    return (location.segment, location.offset, location.length)


def _explained(problem: Exception, path: Path) -> AstraFlowError:
    if is_disk_full(problem):
        return StorageFull(
            f"cannot write {str(path)!r}: the disk is full; free some space, then the run continues by itself",
            code="journal.disk_full",
        )
    return CorruptData(
        f"cannot write {str(path)!r}: {problem}; check the disk and its permissions", code="journal.write_failed"
    )


@contextmanager
def exclusive_use(directory: Path) -> Iterator[None]:
    """Locks a run's journal against other processes: two writers would remove each other's files.

    Raises: InvalidInput when another process holds it, or the directory cannot be used; StorageFull.
    """
    refusal = InvalidInput(
        f"cannot use {str(directory)!r}: another dataflow service is using it; stop it or choose another run directory",
        code="journal.in_use",
    )
    with ExitStack() as stack:
        with _explaining(directory):
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_lock(directory / "lock", refusal=refusal))
        yield


def _open(path: Path) -> sqlite3.Connection:
    with _explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, check_same_thread=False)
        try:
            database.text_factory = _text
            database.execute("pragma journal_mode = wal")
            database.execute("pragma synchronous = full")
            _check_structure(database, path)
            _check_version(database, path)
            database.executescript(_SCHEMA)
            database.execute(f"pragma user_version = {_SCHEMA_VERSION}")
        except BaseException:
            database.close()
            raise
        return database


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as problem:
        if is_disk_full(problem):
            raise StorageFull(
                f"cannot open {str(path)!r}: the disk is full; free some space or choose another run directory",
                code="journal.disk_full",
            ) from problem
        raise InvalidInput(
            f"cannot use {str(path)!r} as a journal: {problem}; choose another run directory", code="journal.unusable"
        ) from problem


def _check_structure(database: sqlite3.Connection, path: Path) -> None:
    """Checks the pages of the file, so that no row is missing silently. Raises: InvalidInput."""
    try:
        findings = [text for (text,) in database.execute("pragma quick_check(3)")]
    except sqlite3.DatabaseError as problem:
        findings = [str(problem)]
    if findings != ["ok"]:
        raise InvalidInput(
            f"cannot read {str(path)!r}: it is damaged ({findings[0]}); restore the folder of dataflow from a backup, "
            "or start a new run",
            code="journal.damaged_file",
        )


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("pragma user_version").fetchone()
    (tables,) = database.execute("select count(*) from sqlite_master").fetchone()
    if tables and version != _SCHEMA_VERSION:
        raise InvalidInput(
            f"cannot resume {str(path)!r}: another release wrote it (schema {version}, this release has "
            f"{_SCHEMA_VERSION}); use that release or choose another run directory",
            code="journal.schema_mismatch",
        )
