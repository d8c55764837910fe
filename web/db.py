"""The web process's own database: SQLite beside its secret, migrated when it is opened."""

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, create_engine

from astraflow.contract.errors import InvalidInput

T = TypeVar("T")

SECRET_BYTES = 32


class Database:
    """Sessions of one SQLite file. Every piece of work is one transaction in a thread of its own."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine = engine
        self.secret = secret
        """Keys the hashes of tokens and cookies; stays the same over restarts."""

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


def open_database(directory: Path) -> Database:
    """The database in `directory`, made or migrated to today's tables.

    Raises: InvalidInput when the directory or what is in it cannot be used, with what would help.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        secret = _secret(directory / "web.secret")
    except OSError as problem:
        raise InvalidInput(
            f"the directory {directory} cannot be used: {problem.strerror}; give one that you may write to"
        ) from None
    path = directory / "web.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", _set_up_connection)
    try:
        _upgrade(engine)
    except DBAPIError as problem:
        raise InvalidInput(
            f"the database {path} cannot be used: {problem.orig}; free space, mend its permissions, or move it away "
            "(it holds logins and recorded charts only, the run does not need it)"
        ) from None
    return Database(engine, secret)


def _secret(path: Path) -> bytes:
    """The secret kept at `path`, made on first use and readable by its owner only."""
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        draft.replace(path)
    secret = path.read_bytes()
    if len(secret) < SECRET_BYTES:
        raise InvalidInput(f"{path} is damaged; delete it, a new one is made and everybody logs in again")
    return secret


def _set_up_connection(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=5000", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _upgrade(engine: Engine) -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
