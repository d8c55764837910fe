"""Database of the web process: SQLite with its secret in the same folder, or PostgreSQL; migrated when it is opened."""

import secrets
from pathlib import Path

from sqlalchemy import Engine

from astraflow.contract.errors import InvalidInput
from astraflow.runtime import database
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.service import make_private_folder

DATABASE, SECRET = "web.sqlite", "web.secret"
DATABASE_URL_VARIABLE = "ASTRAFLOW_WEB_DATABASE"
"""Environment variable with the URL of a PostgreSQL database, used instead of SQLite."""
SECRET_BYTES = 32
MIGRATIONS = Path(__file__).parent / "migrations"

_REPAIR_HINT = (
    "free disk space, correct its permissions, or move it away (it holds accounts, the audit log and charts; the run "
    "does not need it)"
)


class Database(database.Database):
    """Database with the secret of its directory."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        super().__init__(engine)
        self.secret = secret
        """Key of the hashes of tokens and cookies; constant over restarts."""


def open_database(directory: Path, url: str = "") -> Database:
    """Opens the database in `directory`, or the database at `url`; creates or migrates its tables.

    Raises: InvalidInput if the directory or its content is unusable.
    """
    try:
        make_private_folder(directory)
        secret = _secret(directory / SECRET)
    except OSError as problem:
        raise InvalidInput(
            f"cannot use the directory {str(directory)!r}: {problem.strerror}; give a writable directory",
            code="web.directory_unusable",
        ) from None
    return Database(
        database.open_database(_url(directory, url), migrations=MIGRATIONS, repair_hint=_REPAIR_HINT), secret
    )


def _url(directory: Path, url: str) -> str:
    return url or f"sqlite:///{directory / DATABASE}"


def _secret(path: Path) -> bytes:
    """Secret at `path`, created on first use, readable by its owner only."""
    if not path.exists():
        write_private(path, secrets.token_bytes(SECRET_BYTES))
    secret = path.read_bytes()
    if len(secret) < SECRET_BYTES:
        raise InvalidInput(
            f"cannot use the secret {str(path)!r}: too short; delete it to create a new one, all users log in again",
            code="web.secret_damaged",
        )
    return secret
