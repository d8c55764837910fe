"""A separate process creates the current tables."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code
from web.database.db import is_current, open_database
from web.database.migration_process import main, migrate_in_process


@pytest.mark.long
def test_a_new_database_is_current_once_the_other_process_has_ended(tmp_path: Path) -> None:
    assert not is_current(tmp_path / "web")
    migrate_in_process(tmp_path / "web", "")
    assert is_current(tmp_path / "web")
    assert (tmp_path / "web" / "web.secret").is_file()


def test_no_process_is_started_for_a_current_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_database(tmp_path).close()
    monkeypatch.setattr("web.database.migration_process.sys.executable", "/nothing/that/could/be/started")
    with capture_logs() as logs:
        migrate_in_process(tmp_path, "")
        assert logs == []
        (tmp_path / "web.sqlite").unlink()
        with pytest.raises(FileNotFoundError):
            migrate_in_process(tmp_path, "")


def test_an_unusable_directory_or_database_is_reported_when_it_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a directory")
    migrate_in_process(tmp_path / "file", "")
    with raises_code(InvalidInput, "web.directory_unusable"):
        open_database(tmp_path / "file")
    assert main(["--directory", str(tmp_path / "file")]) == 1
    assert "[web.directory_unusable]" in capsys.readouterr().err

    (tmp_path / "web.sqlite").write_bytes(b"this is no database, whatever its name says" * 100)
    with raises_code(InvalidInput, "database.unusable"):
        migrate_in_process(tmp_path, "")
