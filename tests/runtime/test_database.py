"""Transactions of a service's database: atomic, serialized, and isolated."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlmodel import Session

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.database import Database, open_database
from tests.errors import raises_code
from web.database import db

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


async def test_a_database_of_a_later_release_is_refused_unchanged(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    database.write_sync(lambda session: session.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    database.close()
    with raises_code(InvalidInput, "database.later_release"):
        open_in(tmp_path)
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)


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
