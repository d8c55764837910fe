"""File of a journal: its tables, and the committed records that a run is rebuilt from."""

import json
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.unknown_fields import UnknownFieldSet

from astraflow.archive.set_aside import DamagedRecord
from astraflow.contract.errors import AstraFlowError, InvalidInput, StorageFull
from astraflow.contract.record_kinds import Severity
from astraflow.runtime.locks import exclusive_lock
from astraflow.runtime.logs import get_logger
from astraflow.wire.errors import is_disk_full
from astraflow.wire.pb import control_plane_pb2 as pb

log = get_logger()

_SCHEMA_VERSION = 16
"""Grows when the tables or their bodies change; a run of a version without a migration cannot be resumed."""

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
create table if not exists admissions (
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
create table if not exists actions (ordinal integer primary key, body blob not null);
create table if not exists training_steps (
    policy text not null, step integer not null, body blob not null, primary key (policy, step)
) without rowid;
"""

_TABLES = re.findall(r"create table if not exists (\w+)", _SCHEMA)

_DELETE_STATE = "delete from states where name = ?"
_DELETE_ROW = "delete from rows where owner = ? and key = ?"

T = TypeVar("T")


class CommittedRecords(ABC):
    """Committed records of a journal. One that cannot be read is set aside: deleted, and kept for an export."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = open_database(path)
        self.damaged: dict[tuple[str, str], DamagedRecord] = {}
        """Committed records that could not be read, by kind and key."""
        self._rebuild_damaged_keys()

    @abstractmethod
    def put(self, statement: str, *values: Any) -> None:
        """Adds a change to the next commit."""

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


def open_database(path: Path) -> sqlite3.Connection:
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
    while tables and version in MIGRATIONS:
        with database:
            database.execute("begin")
            MIGRATIONS[version](database)
            version += 1
            database.execute(f"pragma user_version = {version}")
    if tables and version != _SCHEMA_VERSION:
        raise InvalidInput(
            f"cannot resume {str(path)!r}: another release wrote it (schema {version}, this release has "
            f"{_SCHEMA_VERSION}); use that release or choose another run directory",
            code="journal.schema_mismatch",
        )


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


_MESSAGE = 5
"""Number of the field of an event that held its sentence up to version 14."""


def _from_14(database: sqlite3.Connection) -> None:
    """Names the tables of admissions and actions so; moves the sentence of each action to its value `text`."""
    database.execute("alter table routed rename to admissions")
    database.execute("alter table acts rename to actions")
    for ordinal, body in database.execute("select ordinal, body from actions").fetchall():
        event = pb.Event.FromString(body)
        unknown = UnknownFieldSet(event)
        fields = (unknown[index] for index in range(len(unknown)))
        text = next((field.data.decode() for field in fields if field.field_number == _MESSAGE), "")
        event.DiscardUnknownFields()
        event.severity, event.values = Severity.INFO.value, json.dumps({"text": text})
        database.execute("update actions set body = ? where ordinal = ?", (event.SerializeToString(), ordinal))


def _from_15(_: sqlite3.Connection) -> None:
    """Changes nothing: the schema creates the table of training steps."""


MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {14: _from_14, 15: _from_15}
"""Change from each version to the next."""
