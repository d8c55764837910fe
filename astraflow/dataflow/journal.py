"""Durability: every change of state goes to disk in order, many changes to a commit.

The service's memory is the authority while it runs; the journal is what it is rebuilt from. It is a SQLite file, for
what changes, and append-only segments, for the payload of results (`segments.py`), which the file only points to.
Changes are committed in the order they were made, so after a crash the journal holds a prefix of the run's history, and
whoever waited for `durable()` before answering answered about something inside that prefix. Small states (cursors,
counters) are not written change by change: they are dumped when a commit is collected, which makes them exact for that
prefix. A state that grows with the data is kept in rows instead, and a commit takes the changed ones (`rows.py`).
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput, StorageFull
from astraflow.contract.values import Json
from astraflow.dataflow.segments import Place, SegmentFiles, SegmentMap
from astraflow.runtime.locks import held
from astraflow.runtime.logs import get_logger
from astraflow.wire.errors import is_disk_full

log = get_logger()

RETRY_S = 1.0
"""Pause before a failed commit is tried again."""

_SCHEMA_VERSION = 9
"""Grows when the tables or their bodies change; a run is taken up by the releases that share it."""

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
create table if not exists batches (policy text primary key, id text not null, version integer not null) without rowid;
create table if not exists evaluations (round integer primary key, body blob not null);
create table if not exists credentials (
    id text primary key, kind text not null, state text not null, role text not null, name text not null,
    pool text not null, until real not null, digest text not null, key text not null,
    origin text not null, is_reusable integer not null, uses integer not null, most_uses integer not null
) without rowid;
create table if not exists acts (ordinal integer primary key, body blob not null);
"""


@dataclass(slots=True)
class _Changes:
    """What a commit carries out, in this order: payload, then the statements that point to it, then the removals."""

    payloads: list[tuple[Place, bytes]] = field(default_factory=list)
    moves: list[tuple[Place, Place]] = field(default_factory=list)
    statements: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    useless: list[int] = field(default_factory=list)
    """Segments that nothing points to after this."""

    def before(self, later: "_Changes") -> "_Changes":
        """Both, in order."""
        return _Changes(
            payloads=self.payloads + later.payloads,
            moves=self.moves + later.moves,
            statements=self.statements + later.statements,
            useless=self.useless + later.useless,
        )


class Journal:
    """One SQLite file in WAL mode with full synchronisation, and its segments; one commit at a time, in a thread.

    An `async with` is not enough of a life for it: `run()` commits until cancelled, then commits what is left.
    """

    is_durable = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = _open(path)
        self._files = SegmentFiles(path.parent / "payload")
        self._map = self._saved_map()
        self._last_payload = max((number for number, _ in self.payload_places()), default=0)
        self._new_payloads: dict[int, bytes] = {}
        """Those that no commit has collected."""
        self._pending = _Changes()
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
        """Have the rows that `changed()` tells of saved with every commit; None deletes one.

        Whoever told of them until now is asked once more, so that rows may change hands.
        """
        self._pending.statements += self._changed_rows(owner)
        self._rows[owner] = changed
        self.touch()

    def forget_rows(self, owner: str) -> None:
        """Delete all rows of `owner`, and ask for no more."""
        self._rows.pop(owner, None)
        self.put("delete from rows where owner = ?", owner)

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
        self._pending.statements.append((statement, values))
        self.touch()

    def keep_payload(self, body: bytes) -> int:
        """Keep these bytes until they are dropped; returns their number."""
        self._last_payload += 1
        self._new_payloads[self._last_payload] = body
        self.touch()
        return self._last_payload

    def drop_payload(self, number: int) -> None:
        """A payload is needed no more; one that no commit has seen yet is never written."""
        if self._new_payloads.pop(number, None) is None:
            self._map.drop(number)
            self.put("delete from payloads where number = ?", number)

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """All that is kept, as committed. Meant for start-up: it blocks. Raises: CorruptData."""
        for number, place in self.payload_places():
            yield number, self._files.read(place)

    def payload_places(self) -> list[tuple[int, Place]]:
        """Where the committed payloads are, by number."""
        rows = self.rows("select number, segment, offset, length from payloads order by number")
        return [(number, Place(segment=segment, offset=at, length=length)) for number, segment, at, length in rows]

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
            self._files.close()
            self._database.close()

    async def _commit(self) -> None:
        """One transaction of all that is pending; on failure it stays pending and is tried again."""
        ordinal, changes, states = self._ordinal, *self._collected()
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, changes, states))
        try:
            await asyncio.shield(self._writing)
        except (OSError, sqlite3.Error) as problem:
            self._pending = changes.before(self._pending)
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
        except (OSError, sqlite3.Error) as problem:
            self._fail(problem)

    def _collected(self) -> tuple[_Changes, dict[str, str]]:
        self._place_payloads()
        self._compact()
        changes, self._pending = self._pending, _Changes()
        changes.statements += [statement for owner in self._rows for statement in self._changed_rows(owner)]
        changes.useless += self._map.take_useless()
        return changes, {name: json.dumps(dict(dump())) for name, dump in self._states.items()}

    def _place_payloads(self) -> None:
        new, self._new_payloads = self._new_payloads, {}
        for number, place in zip(new, self._map.append([(n, len(body)) for n, body in new.items()]), strict=True):
            self._pending.payloads.append((place, new[number]))
            self._pending.statements.append(("insert into payloads values (?, ?, ?, ?)", (number, *_columns(place))))

    def _compact(self) -> None:
        """Move what is left of one segment that is nearly useless."""
        scattered = [(number, self._map.place(number)) for number in self._map.scattered()]
        for number, _ in scattered:
            self._map.drop(number)
        new = self._map.append([(number, old.length) for number, old in scattered])
        for (number, old), place in zip(scattered, new, strict=True):
            self._pending.moves.append((old, place))
            self._pending.statements.append(
                (
                    "update payloads set segment = ?, offset = ?, length = ? where number = ?",
                    (*_columns(place), number),
                )
            )

    def _changed_rows(self, owner: str) -> list[tuple[str, tuple[Any, ...]]]:
        """As changes, so that they outlive a commit that fails; none of an owner whose rows nobody tells of."""
        return [
            ("delete from rows where owner = ? and key = ?", (owner, key))
            if row is None
            else ("insert or replace into rows values (?, ?, ?)", (owner, key, json.dumps(row)))
            for key, row in (self._rows[owner]() if owner in self._rows else {}).items()
        ]

    def _write(self, changes: _Changes, states: Mapping[str, str]) -> None:
        self._files.write(changes.payloads)
        self._files.write([(new, self._files.read(old)) for old, new in changes.moves])
        with self._database:
            for statement, same in groupby(changes.statements, key=itemgetter(0)):
                self._database.executemany(statement, [values for _, values in same])
            self._database.executemany("insert or replace into states values (?, ?)", list(states.items()))
        self._files.remove(changes.useless)

    def _saved_map(self) -> SegmentMap:
        """Segments that nothing points to are what a crash left: they go. New records begin a segment of their own."""
        numbers = self._files.numbers()
        saved = SegmentMap(self.payload_places(), first_free=max(numbers, default=0) + 1)
        pointed_to = {place.segment for _, place in self.payload_places()}
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


def _columns(place: Place) -> tuple[int, int, int]:
    return (place.segment, place.offset, place.length)


def _explained(problem: Exception, path: Path) -> AstraFlowError:
    if is_disk_full(problem):
        return StorageFull(f"the disk under {path} is full: free some space, the run goes on by itself")
    return CorruptData(f"{path} cannot be written: {problem}")


@contextmanager
def sole_user(directory: Path) -> Iterator[None]:
    """Keep every other process away from a run's journal: two that write it would remove each other's files.

    Raises: InvalidInput when another one is there, or the directory cannot be used; StorageFull.
    """
    refusal = f"another dataflow service is using {directory}: stop it or choose another run directory"
    with ExitStack() as stack:
        with _explaining(directory):
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(directory / "lock", refusal=refusal))
        yield


def _open(path: Path) -> sqlite3.Connection:
    with _explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, check_same_thread=False)
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = full")
        _check_version(database, path)
        database.executescript(_SCHEMA)
        database.execute(f"pragma user_version = {_SCHEMA_VERSION}")
        return database


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as problem:
        if is_disk_full(problem):
            raise StorageFull(f"no room for {path}: free some space or choose another run directory") from problem
        raise InvalidInput(f"{path} cannot be used as a journal ({problem}): choose another run directory") from problem


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("pragma user_version").fetchone()
    (tables,) = database.execute("select count(*) from sqlite_master").fetchone()
    if tables and version != _SCHEMA_VERSION:
        raise InvalidInput(f"{path} was written by another release (schema {version}, this one has {_SCHEMA_VERSION})")
