"""Transactions of a service's database: whole, in turn, and out of each other's way."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlmodel import Session

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.database import Database, opened
from web import db

pytestmark = pytest.mark.anyio

MIGRATIONS = Path(db.__file__).parent / "migrations"


def made(folder: Path) -> Database:
    return Database(opened(f"sqlite:///{folder}/a.sqlite", migrations=MIGRATIONS, if_broken="move it away"))


def count(session: Session) -> int:
    return int(session.execute(text("SELECT value FROM preferences WHERE name = 'n'")).scalar_one())


async def test_what_is_read_and_then_written_is_not_changed_in_between(tmp_path: Path) -> None:
    database = made(tmp_path)
    database.do_now(lambda session: session.execute(text("INSERT INTO preferences VALUES ('n', '0')")))

    def add_one(session: Session) -> None:
        value = count(session) + 1
        session.execute(text("UPDATE preferences SET value = :value WHERE name = 'n'").bindparams(value=str(value)))

    await asyncio.gather(*(database.do(add_one) for _ in range(50)))
    assert await database.look(count) == 50
    database.close()


async def test_who_only_looks_does_not_wait_for_who_writes(tmp_path: Path) -> None:
    database = made(tmp_path)
    database.do_now(lambda session: session.execute(text("INSERT INTO preferences VALUES ('n', '1')")))

    def write(session: Session) -> int:
        session.execute(text("UPDATE preferences SET value = '2' WHERE name = 'n'"))
        return database.look_now(count)

    assert await database.do(write) == 1, "it sees what was committed"
    assert await database.look(count) == 2
    database.close()


async def test_what_fails_half_way_is_as_if_it_had_not_begun(tmp_path: Path) -> None:
    database = made(tmp_path)

    def fails(session: Session) -> None:
        session.execute(text("INSERT INTO preferences VALUES ('n', '1')"))
        raise LookupError

    with pytest.raises(LookupError):
        await database.do(fails)
    assert await database.look(lambda session: session.execute(text("SELECT * FROM preferences")).all()) == []
    database.close()


async def test_it_is_written_ahead_and_a_broken_one_is_refused_with_what_would_help(tmp_path: Path) -> None:
    made(tmp_path).close()
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    (tmp_path / "a.sqlite").write_bytes(b"no database" * 500)
    with pytest.raises(InvalidInput, match="move it away"):
        made(tmp_path)
