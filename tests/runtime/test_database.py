"""Transactions of a service's database: atomic, serialized, and isolated."""

import asyncio
import resource
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.pool import QueuePool
from sqlmodel import Session

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.database import Database, open_database
from tests.errors import raises_code
from web.database import db
from web.database.tables import Preference, RunRecord

pytestmark = pytest.mark.anyio

MIGRATIONS = Path(db.__file__).parent / "migrations"


def open_in(folder: Path) -> Database:
    return Database(open_database(f"sqlite:///{folder}/a.sqlite", migrations=MIGRATIONS, repair_hint="move it away"))


def count(session: Session) -> int:
    return int(session.execute(text("SELECT value FROM preferences WHERE name = 'n'")).scalar_one())


async def test_a_read_and_its_write_are_one_transaction(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    database.write_sync(lambda session: session.execute(text("INSERT INTO preferences VALUES ('n', '0')")))

    def add_one(session: Session) -> None:
        value = count(session) + 1
        session.execute(text("UPDATE preferences SET value = :value WHERE name = 'n'").bindparams(value=str(value)))

    await asyncio.gather(*(database.write(add_one) for _ in range(50)))
    assert await database.read(count) == 50
    database.close()


async def test_readers_do_not_wait_for_writers(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    database.write_sync(lambda session: session.execute(text("INSERT INTO preferences VALUES ('n', '1')")))

    def write(session: Session) -> int:
        session.execute(text("UPDATE preferences SET value = '2' WHERE name = 'n'"))
        return database.read_sync(count)

    assert await database.write(write) == 1, "the reader sees the committed value"
    assert await database.read(count) == 2
    database.close()


async def test_a_failed_transaction_is_rolled_back(tmp_path: Path) -> None:
    database = open_in(tmp_path)

    def fails(session: Session) -> None:
        session.execute(text("INSERT INTO preferences VALUES ('n', '1')"))
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(fails)
    assert await database.read(lambda session: session.execute(text("SELECT * FROM preferences")).all()) == []
    database.close()


async def test_a_transaction_that_outlasts_the_database_closes_its_connection(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    begun, goes_on = threading.Event(), threading.Event()

    def outlasts(session: Session) -> Any:
        connection = session.connection().connection.driver_connection
        begun.set()
        goes_on.wait()
        return connection

    reading = asyncio.create_task(database.read(outlasts))
    await asyncio.to_thread(begun.wait)
    database.close()
    goes_on.set()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        (await reading).total_changes  # noqa: B018 (raises)


async def test_the_database_uses_a_write_ahead_log_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    open_in(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    (tmp_path / "a.sqlite").write_bytes(b"no database" * 500)
    with raises_code(InvalidInput, "database.unusable"):
        open_in(tmp_path)


@pytest.mark.parametrize(("revision", "code"), [("9999", "database.later_release"), ("0001", "database.draft")])
async def test_a_database_of_a_later_release_or_of_a_draft_is_refused_unchanged(
    tmp_path: Path, revision: str, code: str
) -> None:
    database = open_in(tmp_path)
    change = text("UPDATE alembic_version SET version_num = :revision").bindparams(revision=revision)
    database.write_sync(lambda session: session.execute(change))
    database.close()
    with raises_code(InvalidInput, code):
        open_in(tmp_path)
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (revision,)


async def test_an_unreachable_server_is_an_outage_and_not_invalid_input() -> None:
    url = "postgresql://web:secret@127.0.0.1:1/page"
    with pytest.raises(Unavailable, check=lambda problem: problem.code == "database.unreachable") as caught:
        open_database(url, migrations=MIGRATIONS, repair_hint="move it away")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_transaction_whose_server_is_gone_is_an_outage() -> None:
    database = Database(create_engine("postgresql+psycopg://web@127.0.0.1:1/page"))
    with raises_code(Unavailable, "database.unreachable"):
        await database.write(count)
    with raises_code(Unavailable, "database.unreachable"):
        await database.read(count)
    database.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program holds SQLite's exclusive lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def limited_files(path: Path) -> Iterator[None]:
    """Files of this process cannot grow, as with a quota."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in path.parent.iterdir() if stat.S_ISREG(file.stat().st_mode))
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def add_rows(session: Session, *, pages: int = 0) -> None:
    if pages:
        session.execute(text(f"PRAGMA max_page_count = {pages}"))
    for number in range(64):
        session.execute(
            text("INSERT INTO preferences VALUES (:name, :value)"), {"name": str(number), "value": "x" * 9000}
        )


def forget_rows(session: Session) -> int:
    session.execute(text("PRAGMA max_page_count = 1000000"))
    return len(session.execute(text("DELETE FROM preferences RETURNING name")).all())


@pytest.mark.parametrize(("outage", "pages"), [(locked, 0), (nullcontext, 40), (limited_files, 0)])
async def test_a_transaction_of_a_locked_or_full_sqlite_is_an_outage_that_ends(
    outage: Any, pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.runtime.database.LOCK_TIMEOUT_S", 0.05)
    database = open_in(tmp_path)
    with outage(tmp_path / "a.sqlite"), raises_code(Unavailable, "database.unreachable"):
        await database.write(lambda session: add_rows(session, pages=pages))
    assert await database.write(forget_rows) == 0, "nothing of the transaction was stored"
    await database.write(add_rows)
    assert await database.write(forget_rows) == 64
    database.close()


async def test_reads_go_on_while_another_program_holds_the_lock(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    await database.write(add_rows)
    with locked(tmp_path / "a.sqlite"):
        rows = await database.read(lambda session: session.execute(text("SELECT count(*) FROM preferences")).scalar())
    assert rows == 64
    database.close()


async def test_a_locked_database_at_the_start_is_an_outage_and_a_wrong_place_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.runtime.database.LOCK_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("BEGIN EXCLUSIVE")
        with raises_code(Unavailable, "database.unreachable"):
            open_in(tmp_path)
    with raises_code(InvalidInput, "database.unusable"):
        open_in(tmp_path / "missing")


def test_a_file_system_that_became_read_only_is_an_outage(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    with raises_code(Unavailable, "database.unreachable"):
        database.write_sync(lambda session: add_rows_read_only(session))
    assert database.read_sync(lambda session: session.execute(text("SELECT count(*) FROM preferences")).scalar()) == 0
    database.close()


def add_rows_read_only(session: Session) -> None:
    session.execute(text("PRAGMA query_only = ON"))
    try:
        add_rows(session)
    finally:
        session.execute(text("PRAGMA query_only = OFF"))


@pytest.mark.parametrize("value", [2**63, "\ud800"])
async def test_a_value_that_no_database_stores_is_invalid_input(value: object, tmp_path: Path) -> None:
    database = open_in(tmp_path)
    insert = text("INSERT INTO preferences VALUES ('n', :value)").bindparams(value=value)
    with raises_code(InvalidInput, "database.invalid_value"):
        await database.write(lambda session: session.execute(insert))
    database.close()


@pytest.mark.parametrize("value", [2**31, "a\0b", "\ud800"])
async def test_a_value_that_postgresql_does_not_store_is_invalid_input(value: object, empty_postgres: str) -> None:
    database = Database(open_database(empty_postgres, migrations=MIGRATIONS, repair_hint=""))
    table = RunRecord.__table__ if isinstance(value, int) else Preference.__table__  # type: ignore[attr-defined] # SQLModel
    column = table.c.id if isinstance(value, int) else table.c.name
    with raises_code(InvalidInput, "database.invalid_value"):
        await database.read(lambda session: session.execute(select(column).where(column == value)).all())
    database.close()


async def test_a_postgresql_that_admits_no_writes_is_an_outage(empty_postgres: str) -> None:
    database = Database(open_database(empty_postgres, migrations=MIGRATIONS, repair_hint=""))

    def write(session: Session) -> None:
        session.execute(text("SET TRANSACTION READ ONLY"))  # as on a standby
        session.execute(text("INSERT INTO preferences VALUES ('n', '1')"))

    with raises_code(Unavailable, "database.unreachable"):
        await database.write(write)
    database.close()


async def test_a_transaction_that_gets_no_connection_is_an_outage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/b.sqlite"
    database = Database(create_engine(url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01))
    with raises_code(Unavailable, "database.unreachable"):
        database.read_sync(lambda session: (session.connection(), database.read_sync(Session.connection)))
    database.close()
