"""A PostgreSQL for tests: Debian's, on a free port of loopback, removed after the test."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import create_engine, text

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/usr/lib/postgresql/bin"))
"""Newest PostgreSQL of Debian; may not exist."""
UNPRIVILEGED_UID = 65534


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Starts a PostgreSQL on a free port of loopback; yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with postgres_folder() as folder:
        process = subprocess.Popen(
            server_command(folder, port), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + 30
            while subprocess.run([PROGRAMS / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode:
                assert time.monotonic() < deadline, "PostgreSQL did not come up"
                time.sleep(0.1)
            yield server_url(port)
        finally:
            process.terminate()
            process.wait(20)


@contextlib.contextmanager
def postgres_folder() -> Iterator[Path]:
    """Creates the files of a PostgreSQL in a new folder, which is removed after the block."""
    folder = Path(tempfile.mkdtemp(prefix="astraflow-postgres-"))
    if os.getuid() == 0:
        os.chown(folder, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    try:
        options = ["-D", str(folder / "data"), "-U", "web", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([*_unprivileged("initdb"), *options], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        yield folder
    finally:
        shutil.rmtree(folder)


def server_command(folder: Path, port: int) -> list[str]:
    """Returns the command that runs the PostgreSQL of a folder."""
    options = ["-D", str(folder / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", str(folder), "-F"]
    return [*_unprivileged("postgres"), *options]


def server_url(port: int, database: str = "postgres") -> str:
    """Returns the URL of a database."""
    return f"postgresql://web@127.0.0.1:{port}/{database}"


def separate_schema(url: str, name: str) -> str:
    """Creates a schema and returns the URL of a database whose tables are in it, beside those of another service."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        connection.execute(text(f"DROP SCHEMA IF EXISTS {name} CASCADE"))
        connection.execute(text(f"CREATE SCHEMA {name}"))
        connection.commit()
    engine.dispose()
    return f"{url}?options=-csearch_path%3D{name}"


def _unprivileged(program: str) -> list[str]:
    """Returns the command of a program as another user: PostgreSQL refuses to run as root."""
    user, group = f"--reuid={UNPRIVILEGED_UID}", f"--regid={UNPRIVILEGED_UID}"
    prefix = ["setpriv", user, group, "--clear-groups"] if os.getuid() == 0 else []
    return [*prefix, str(PROGRAMS / program)]


def emptied(url: str) -> str:
    """Drops all tables of the database and returns its URL."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
        connection.commit()
    engine.dispose()
    return url
