"""The database: creation, migration, and errors that name a remedy."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code
from web.database.db import open_database


def test_the_secret_is_kept_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    first, second = open_database(tmp_path), open_database(tmp_path)

    assert first.secret == second.secret
    assert stat.S_IMODE((tmp_path / "web.secret").stat().st_mode) == 0o600
    first.close()
    second.close()


def test_the_database_uses_a_write_ahead_log(tmp_path: Path) -> None:
    open_database(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "web.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_unusable_directories_secrets_and_databases_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with raises_code(InvalidInput, "web.directory_unusable"):
        open_database(tmp_path / "file" / "below")

    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "web.secret").write_bytes(b"short")
    with raises_code(InvalidInput, "web.secret_damaged"):
        open_database(damaged)

    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "web.sqlite").write_bytes(b"this is no database, whatever its name says" * 100)
    with raises_code(InvalidInput, "database.unusable", str(strange)):
        open_database(strange)
