"""Detection of an up-to-date database schema without Alembic."""

from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from astraflow.runtime.database import is_current, newest_revision, open_database
from maintainer.fleet.ledger import ledger
from web.database import db

FOLDERS = [db.MIGRATIONS, Path(ledger.__file__).parent / "migrations"]


@pytest.mark.parametrize("migrations", FOLDERS)
def test_the_newest_revision_is_the_head_of_the_migrations(migrations: Path) -> None:
    assert newest_revision(migrations) == ScriptDirectory(str(migrations)).get_current_head()


@pytest.mark.parametrize("migrations", FOLDERS)
def test_opening_a_database_migrates_it(tmp_path: Path, migrations: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.sqlite"
    assert not is_current(url, migrations=migrations, repair_hint="")
    open_database(url, migrations=migrations, repair_hint="").dispose()
    assert is_current(url, migrations=migrations, repair_hint="")
