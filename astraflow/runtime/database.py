"""A service's own database: SQLite in write-ahead mode, or whatever a URL names, migrated when it is opened."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import Engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlmodel import Session, create_engine

from astraflow.contract.errors import InvalidInput

T = TypeVar("T")


class Database:
    """Sessions of one database. Every piece of work is one transaction in a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def do(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction, off the event loop."""
        return await asyncio.to_thread(self.do_now, work)

    def do_now(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction, here."""
        with Session(self._engine, expire_on_commit=False) as session, session.begin():
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
    try:
        engine = create_engine(url)
    except (ArgumentError, ImportError) as problem:
        what = f"{problem}".replace(url, _shown(url))  # SQLAlchemy quotes it
        raise InvalidInput(f"the database {_shown(url)} cannot be used: {what}; {if_broken}") from None
    if engine.dialect.name == "sqlite":
        pragmas = ("journal_mode=WAL", f"synchronous={'FULL' if is_synced else 'NORMAL'}", "busy_timeout=5000")
        event.listen(engine, "connect", lambda connection, _: _set_up(connection, (*pragmas, "foreign_keys=ON")))
    try:
        _upgrade(engine, migrations)
    except DBAPIError as problem:
        engine.dispose()
        raise InvalidInput(f"the database {_shown(url)} cannot be used: {problem.orig}; {if_broken}") from None
    return engine


def _set_up(connection: Any, pragmas: tuple[str, ...]) -> None:
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")


def _upgrade(engine: Engine, migrations: Path) -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", str(migrations))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()


def _shown(url: str) -> str:
    """Without the user and password that may be in it."""
    before, at, rest = url.rpartition("@")
    return f"{before.partition('://')[0]}://{rest}" if at and "://" in before else rest
