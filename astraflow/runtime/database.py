"""Database of a service: SQLite in write-ahead mode, or the database of a URL, migrated when it is opened."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event, inspect, text
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlmodel import Session, create_engine

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.retries import sqlite_remedy

T = TypeVar("T")

_READS_ONLY = "astraflow_reads_only"
_CACHE_KIB = 512
"""Page cache of a SQLite connection, in KiB. Small, because every thread may hold a connection."""

CONNECT_TIMEOUT_S = 10
"""Time for a connection to a database server, in seconds."""

LOCK_TIMEOUT_S = 5.0
"""Time for which a transaction waits for SQLite's lock, in seconds."""

_READ_ONLY_SQL_TRANSACTION = "25006"
"""State of an error of PostgreSQL: the server is a standby, or was made read-only."""

_MIGRATION_LOCK = 0x617374726166
"""Arbitrary, but unique to AstraFlow."""

_REVISIONS = "alembic_version"
"""Alembic's table, whose single row has the revision of the database."""


class Database:
    """Sessions of one database. Each unit of work is one transaction in a thread.

    A writing transaction holds SQLite's only write lock from its first statement: its reads cannot change meanwhile,
    and it never fails midway because of another writer. In an outage, every transaction raises Unavailable: a server
    cannot be reached, or SQLite's file is locked, read-only or on a full disk. One that was being committed may have
    taken effect. A value that the database cannot store, such as a text with NUL, raises InvalidInput.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = engine.execution_options(**{_READS_ONLY: True})
        self._is_closed = False

    async def write(self, work: Callable[[Session], T]) -> T:
        """Runs `work` in a transaction that may write, off the event loop."""
        return await asyncio.to_thread(self.write_sync, work)

    async def read(self, work: Callable[[Session], T]) -> T:
        """Runs `work`, which only reads, off the event loop; it sees one snapshot and does not wait for writers."""
        return await asyncio.to_thread(self.read_sync, work)

    def write_sync(self, work: Callable[[Session], T]) -> T:
        """Runs `work` in a transaction that may write, in this thread."""
        return self._run(self._engine, work)

    def read_sync(self, work: Callable[[Session], T]) -> T:
        """Runs `work`, which only reads, in this thread."""
        return self._run(self._reading, work)

    def close(self) -> None:
        """Closes all connections; that of a transaction which still runs in a thread is closed when it ends."""
        self._is_closed = True
        self._engine.pool.dispose()

    def _run(self, engine: Engine, work: Callable[[Session], T]) -> T:
        try:
            with _explained(engine), Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)
        finally:
            if self._is_closed:
                self._engine.pool.dispose()


def storable_text(text: str) -> str:
    """Returns a text that every database stores alike, such as the output of a program: without NUL and unpaired
    surrogates."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def open_database(url: str, *, migrations: Path, repair_hint: str, is_synced: bool = False) -> Engine:
    """Opens the database at `url`, creating or migrating its tables.

    migrations: Alembic's folder; its `env.py` migrates the connection in the attributes of the configuration.
    repair_hint: remedy in error messages. is_synced: SQLite returns from a commit when it is on disk.
    Raises: InvalidInput when the database cannot be used or a later release wrote it, Unavailable when its server
    cannot be reached.
    """
    engine = _engine(url, repair_hint=repair_hint, is_synced=is_synced)
    try:
        revision, known = _revision(engine), revisions(migrations)
        newest = known[-1]
        if revision is not None and revision > newest:
            raise InvalidInput(
                f"cannot use the database {_name(engine)!r}: a later release wrote it (revision {revision}, this one "
                f"has {newest}); use that release, or restore the backup from before the upgrade",
                code="database.later_release",
            )
        if revision is not None and revision not in known:
            raise InvalidInput(
                f"cannot use the database {_name(engine)!r}: a draft from before the first release wrote it (revision "
                f"{revision}); use the software that wrote it, or an empty database",
                code="database.draft",
            )
        if revision != newest:
            migrate(engine, migrations)
    except DBAPIError as problem:
        engine.dispose()
        raise _open_error(engine, problem, repair_hint) from None
    except InvalidInput:
        engine.dispose()
        raise
    return engine


def revisions(migrations: Path) -> list[str]:
    """Returns the revisions in a folder, oldest first; the names of its files begin with them."""
    return sorted(path.stem.partition("_")[0] for path in (migrations / "versions").glob("[0-9]*.py"))


def migrate(engine: Engine, migrations: Path) -> None:
    """Runs the missing migrations of a folder, whose `env.py` takes its connection from the attributes."""
    from alembic import command  # takes 8 MB and 0.2 s, needed once for each release
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations))
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":  # one process migrates, the others wait for it; SQLite locks anyway
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()


def _revision(engine: Engine) -> str | None:
    """Returns the revision of a database; None for an empty one."""
    with engine.execution_options(**{_READS_ONLY: True}).connect() as connection:
        if not inspect(connection).has_table(_REVISIONS):
            return None
        return connection.execute(text(f"SELECT version_num FROM {_REVISIONS}")).scalar_one_or_none()  # noqa: S608 (a constant)


def _engine(url: str, *, repair_hint: str, is_synced: bool) -> Engine:
    try:
        engine = create_engine(_with_driver(url), pool_pre_ping=True, connect_args=_connect_arguments(url))
    except ImportError as problem:
        raise InvalidInput(
            f"cannot use the database {_redacted(url)!r}: {problem}; for PostgreSQL, pip install 'astraflow[postgres]'",
            code="database.missing_driver",
        ) from None
    except (ValueError, ArgumentError) as problem:
        cause = f"{problem}".replace(url, _redacted(url))  # SQLAlchemy quotes the URL
        raise InvalidInput(
            f"cannot use the database {_redacted(url)!r}: {cause}; {repair_hint}", code="database.unusable"
        ) from None
    if engine.dialect.name == "sqlite":
        pragmas = (
            "journal_mode=WAL",
            f"synchronous={'FULL' if is_synced else 'NORMAL'}",
            f"busy_timeout={round(1000 * LOCK_TIMEOUT_S)}",
            f"cache_size=-{_CACHE_KIB}",
        )
        event.listen(engine, "connect", lambda connection, _: _set_up(connection, (*pragmas, "foreign_keys=ON")))
        event.listen(engine, "begin", _begin)
    return engine


def _open_error(engine: Engine, problem: DBAPIError, repair_hint: str) -> InvalidInput | Unavailable:
    remedy = _outage_remedy(problem, is_start=True)
    if remedy is not None:
        return _outage(engine, problem, remedy)
    return InvalidInput(
        f"cannot use the database {_name(engine)!r}: {_cause(problem)}; {repair_hint}", code="database.unusable"
    )


@contextmanager
def _explained(engine: Engine) -> Iterator[None]:
    """Raises Unavailable for outages, and InvalidInput for values that the database cannot store."""
    try:
        yield
    except (DataError, OverflowError, UnicodeEncodeError) as problem:
        raise InvalidInput(
            "cannot use a value of the request: the database cannot store it; send texts without NUL and unpaired "
            "surrogates, and smaller numbers",
            code="database.invalid_value",
        ) from problem
    except (DBAPIError, PoolTimeout) as problem:
        remedy = _outage_remedy(problem)
        if remedy is None:
            raise
        raise _outage(engine, problem, remedy) from problem


def _outage_remedy(problem: DBAPIError | PoolTimeout, *, is_start: bool = False) -> str | None:
    """Returns what to do in an outage: a server ended or refused the connection, admits no writes now or has no
    connection left, or SQLite cannot use its file now. None for any other problem."""
    if isinstance(problem, PoolTimeout):  # of the pool: all connections wait for the same outage
        return "see the log for the transactions that hold its connections"
    if hasattr(problem.orig, "sqlite_errorname"):
        return sqlite_remedy(problem.orig, is_start=is_start)
    is_read_only = getattr(problem.orig, "sqlstate", None) == _READ_ONLY_SQL_TRANSACTION
    if isinstance(problem, OperationalError | InterfaceError) or problem.connection_invalidated or is_read_only:
        return "check that its server runs and admits this user"
    return None


def _outage(engine: Engine, problem: DBAPIError | PoolTimeout, remedy: str) -> Unavailable:
    return Unavailable(
        f"cannot reach the database {_name(engine)!r}: {_cause(problem)}; {remedy}", code="database.unreachable"
    )


def _name(engine: Engine) -> str:
    return _redacted(engine.url.render_as_string(hide_password=True))


def _cause(problem: DBAPIError | PoolTimeout) -> str:
    return str(problem.orig if isinstance(problem, DBAPIError) else problem).partition("\n")[0]


def _begin(connection: Connection) -> None:
    reads_only = connection.get_execution_options().get(_READS_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


def _set_up(connection: Any, pragmas: tuple[str, ...]) -> None:
    connection.isolation_level = None  # Python's sqlite3 would begin after the first reads
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")


def _with_driver(url: str) -> str:
    """Adds the driver of the extra `postgres` to a URL without a driver."""
    for scheme in ("postgresql://", "postgres://"):
        if url.startswith(scheme):
            return "postgresql+psycopg://" + url.removeprefix(scheme)
    return url


def _connect_arguments(url: str) -> dict[str, int]:
    return {} if url.startswith("sqlite") else {"connect_timeout": CONNECT_TIMEOUT_S}


def _redacted(url: str) -> str:
    """Returns the URL without user and password."""
    before, at, rest = url.rpartition("@")
    return f"{before.partition('://')[0]}://{rest}" if at and "://" in before else rest
