"""A service's own database: SQLite in write-ahead mode, or whatever a URL names, migrated when it is opened."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event, inspect, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlmodel import Session, create_engine

from astraflow.contract.errors import InvalidInput

T = TypeVar("T")

_READS_ONLY = "astraflow_reads_only"
_CACHE_KIB = 512
"""Of each connection to SQLite, of which every thread may hold one: what is not in it is in the system's own cache."""

_REVISIONS = "alembic_version"
"""Alembic's table, whose one row says which migrations a database has had."""


class Database:
    """Sessions of one database. Every piece of work is one transaction in a thread of its own.

    Work that writes holds SQLite's only write lock from its first statement: what it reads cannot change under it, and
    it never fails half-way because another was faster.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = engine.execution_options(**{_READS_ONLY: True})

    async def do(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction that may write, off the event loop."""
        return await asyncio.to_thread(self.do_now, work)

    async def look(self, work: Callable[[Session], T]) -> T:
        """Run `work`, which only reads, off the event loop; it waits for no writer and sees one moment."""
        return await asyncio.to_thread(self.look_now, work)

    def do_now(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction that may write, here."""
        with Session(self._engine, expire_on_commit=False) as session, session.begin():
            return work(session)

    def look_now(self, work: Callable[[Session], T]) -> T:
        """Run `work`, which only reads, here."""
        with Session(self._reading, expire_on_commit=False) as session, session.begin():
            return work(session)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def opened(url: str, *, migrations: Path, if_broken: str, is_synced: bool = False) -> Engine:
    """The database at `url`, made or migrated to today's tables.

    migrations: Alembic's folder, whose `env.py` migrates the connection it finds in its config's attributes.
    if_broken: what would help, for the message. is_synced: each commit of SQLite is on the disk before it returns.
    Raises: InvalidInput when it cannot be used.
    """
    engine = _engine(url, if_broken=if_broken, is_synced=is_synced)
    try:
        if _revision(engine) != newest_revision(migrations):
            from astraflow.runtime.migrating import migrate  # Alembic takes 8 MB: whose tables are today's has none

            migrate(engine, migrations)
    except DBAPIError as problem:
        engine.dispose()
        raise _unusable(url, problem, if_broken) from None
    return engine


def is_current(url: str, *, migrations: Path, if_broken: str) -> bool:
    """Whether the database at `url` has today's tables. Raises: InvalidInput when it cannot be used."""
    engine = _engine(url, if_broken=if_broken, is_synced=False)
    try:
        return _revision(engine) == newest_revision(migrations)
    except DBAPIError as problem:
        raise _unusable(url, problem, if_broken) from None
    finally:
        engine.dispose()


def newest_revision(migrations: Path) -> str:
    """The revision that the folder leads to: its files begin with theirs, and are in order."""
    return max(path.stem.partition("_")[0] for path in (migrations / "versions").glob("[0-9]*.py"))


def _revision(engine: Engine) -> str | None:
    """The revision that a database is at; None for an empty one."""
    with engine.execution_options(**{_READS_ONLY: True}).connect() as connection:
        if not inspect(connection).has_table(_REVISIONS):
            return None
        return connection.execute(text(f"SELECT version_num FROM {_REVISIONS}")).scalar_one_or_none()  # noqa: S608 (a constant)


def _engine(url: str, *, if_broken: str, is_synced: bool) -> Engine:
    try:
        engine = create_engine(_with_driver(url), pool_pre_ping=True)
    except ImportError as problem:
        raise InvalidInput(
            f"the database {_shown(url)} cannot be used: {problem}; for PostgreSQL: pip install 'astraflow[postgres]'"
        ) from None
    except (ValueError, ArgumentError) as problem:
        what = f"{problem}".replace(url, _shown(url))  # SQLAlchemy quotes it
        raise InvalidInput(f"the database {_shown(url)} cannot be used: {what}; {if_broken}") from None
    if engine.dialect.name == "sqlite":
        pragmas = (
            "journal_mode=WAL",
            f"synchronous={'FULL' if is_synced else 'NORMAL'}",
            "busy_timeout=5000",
            f"cache_size=-{_CACHE_KIB}",
        )
        event.listen(engine, "connect", lambda connection, _: _set_up(connection, (*pragmas, "foreign_keys=ON")))
        event.listen(engine, "begin", _begin)
    return engine


def _unusable(url: str, problem: DBAPIError, if_broken: str) -> InvalidInput:
    return InvalidInput(f"the database {_shown(url)} cannot be used: {problem.orig}; {if_broken}")


def _begin(connection: Connection) -> None:
    reads_only = connection.get_execution_options().get(_READS_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


def _set_up(connection: Any, pragmas: tuple[str, ...]) -> None:
    connection.isolation_level = None  # Python's sqlite3 would begin late, after the first reads
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")


def _with_driver(url: str) -> str:
    """With the driver that comes with the extra `postgres`, where none is named."""
    for plain in ("postgresql://", "postgres://"):
        if url.startswith(plain):
            return "postgresql+psycopg://" + url.removeprefix(plain)
    return url


def _shown(url: str) -> str:
    """Without the user and password that may be in it."""
    before, at, rest = url.rpartition("@")
    return f"{before.partition('://')[0]}://{rest}" if at and "://" in before else rest
