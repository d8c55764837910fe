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
    folder = Path(tempfile.mkdtemp(prefix="astraflow-postgres-"))
    user = UNPRIVILEGED_UID if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
    if user is not None:
        os.chown(folder, user, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    subprocess.run(
        [PROGRAMS / "initdb", "-D", data, "-U", "web", "-A", "trust", "-E", "UTF8", "--no-sync"],
        check=True,
        user=user,
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    process = subprocess.Popen(
        [PROGRAMS / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"],
        user=user,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while subprocess.run([PROGRAMS / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode:
            assert time.monotonic() < deadline, "PostgreSQL did not come up"
            time.sleep(0.1)
        yield f"postgresql://web@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder)


def emptied(url: str) -> str:
    """Drops all tables of the database and returns its URL."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
        connection.commit()
    engine.dispose()
    return url
