"""The web process's own database: SQLite beside its secret, or PostgreSQL; migrated when it is opened."""

import os
import secrets
from pathlib import Path

from sqlalchemy import Engine

from astraflow.contract.errors import InvalidInput
from astraflow.runtime import database
from astraflow.runtime.service import private_folder

DATABASE, SECRET = "web.sqlite", "web.secret"
URL = "ASTRAFLOW_WEB_DATABASE"
"""Environment variable: the address of a PostgreSQL database to use instead."""
SECRET_BYTES = 32
MIGRATIONS = Path(__file__).parent / "migrations"

_IF_BROKEN = (
    "free space, mend its permissions, or move it away (it holds accounts, the audit and recorded charts; the run does "
    "not need it)"
)


class Database(database.Database):
    """Sessions of the database, and the secret kept in the directory."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        super().__init__(engine)
        self.secret = secret
        """Keys the hashes of tokens and cookies; stays the same over restarts."""


def open_database(directory: Path, url: str = "") -> Database:
    """The database in `directory`, or the one at `url`, made or migrated to today's tables.

    Raises: InvalidInput when the directory or what is in it cannot be used, with what would help.
    """
    try:
        private_folder(directory)
        secret = _secret(directory / SECRET)
    except OSError as problem:
        raise InvalidInput(
            f"the directory {directory} cannot be used: {problem.strerror}; give one that you may write to"
        ) from None
    return Database(database.opened(_url(directory, url), migrations=MIGRATIONS, if_broken=_IF_BROKEN), secret)


def is_current(directory: Path, url: str = "") -> bool:
    """Whether there is a database with today's tables. Raises: InvalidInput as `open_database`."""
    if not url and not (directory / DATABASE).exists():
        return False
    return database.is_current(_url(directory, url), migrations=MIGRATIONS, if_broken=_IF_BROKEN)


def _url(directory: Path, url: str) -> str:
    return url or f"sqlite:///{directory / DATABASE}"


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
