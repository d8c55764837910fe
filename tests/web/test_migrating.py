"""Today's tables are made by a process of its own."""

from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from web.db import is_current, open_database
from web.migrating import main, migrate_apart


def test_a_new_database_is_current_once_the_other_process_has_ended(tmp_path: Path) -> None:
    assert not is_current(tmp_path / "web")
    migrate_apart(tmp_path / "web", "")
    assert is_current(tmp_path / "web")
    assert (tmp_path / "web" / "web.secret").is_file()


def test_nothing_is_started_for_a_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_database(tmp_path).close()
    monkeypatch.setattr("web.migrating.sys.executable", "/nothing/that/could/be/started")
    migrate_apart(tmp_path, "")


def test_what_cannot_be_used_is_said_by_whoever_opens_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("not a directory")
    migrate_apart(tmp_path / "file", "")
    with pytest.raises(InvalidInput, match="give one that you may write to"):
        open_database(tmp_path / "file")
    assert main(["--directory", str(tmp_path / "file")]) == 1
    assert "give one that you may write to" in capsys.readouterr().err

    (tmp_path / "web.sqlite").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(InvalidInput, match="move it away"):
        migrate_apart(tmp_path, "")
