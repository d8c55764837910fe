"""Migrations of a database when it is opened."""

from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from astraflow.runtime.database import newest_revision, open_database
from maintainer.fleet.ledger import ledger
from web.database import db

FOLDERS = [db.MIGRATIONS, Path(ledger.__file__).parent / "migrations"]


@pytest.mark.parametrize("migrations", FOLDERS)
def test_the_newest_revision_is_the_head_of_the_migrations(migrations: Path) -> None:
    assert newest_revision(migrations) == ScriptDirectory(str(migrations)).get_current_head()


@pytest.mark.parametrize("migrations", FOLDERS)
def test_opening_a_database_migrates_it(tmp_path: Path, migrations: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/a.sqlite", migrations=migrations, repair_hint="")
    with engine.connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == newest_revision(migrations)
    engine.dispose()
