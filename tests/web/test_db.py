"""The database: made, migrated, and refused with a sentence."""

import sqlite3
import stat
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from web.db import open_database


def test_the_secret_stays_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first, second = open_database(tmp_path), open_database(tmp_path)

    assert first.secret == second.secret
    assert stat.S_IMODE((tmp_path / "web.secret").stat().st_mode) == 0o600
    first.close()
    second.close()


def test_the_database_is_written_ahead_so_that_readers_do_not_wait(tmp_path: Path) -> None:
    open_database(tmp_path).close()
    with sqlite3.connect(tmp_path / "web.sqlite") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_what_cannot_be_used_is_refused_with_what_would_help(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(InvalidInput, match="give one that you may write to"):
        open_database(tmp_path / "file" / "below")

    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "web.secret").write_bytes(b"short")
    with pytest.raises(InvalidInput, match="is damaged; delete it"):
        open_database(damaged)

    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "web.sqlite").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(InvalidInput, match="move it away"):
        open_database(strange)
