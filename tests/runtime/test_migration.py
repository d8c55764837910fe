"""Migrations of a database when it is opened."""

import hashlib
from pathlib import Path
from types import ModuleType

import pytest
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.schema import CreateTable

from astraflow.runtime.database import open_database, revisions
from maintainer.fleet.ledger import ledger
from maintainer.fleet.ledger import tables as ledger_tables
from web.database import db
from web.database import tables as page_tables

FOLDERS = [db.MIGRATIONS, Path(ledger.__file__).parent / "migrations"]


@pytest.mark.parametrize("migrations", FOLDERS)
def test_the_newest_revision_is_the_head_of_the_migrations(migrations: Path) -> None:
    assert revisions(migrations)[-1] == ScriptDirectory(str(migrations)).get_current_head()


@pytest.mark.parametrize("migrations", FOLDERS)
def test_opening_a_database_migrates_it(tmp_path: Path, migrations: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/a.sqlite", migrations=migrations, repair_hint="")
    with engine.connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == revisions(migrations)[-1]
    engine.dispose()


@pytest.mark.parametrize(
    ("module", "migrations", "expected"),
    [
        (page_tables, FOLDERS[0], ("0014", "a9f9a133bd80a686")),
        (ledger_tables, FOLDERS[1], ("0011", "56d796dca9bdb211")),
    ],
)
def test_changed_tables_have_a_new_revision(module: ModuleType, migrations: Path, expected: tuple[str, str]) -> None:
    """Until the first release, a migration creates the declared tables: its number changes with them."""
    statements = "".join(str(CreateTable(table)) for table in module.own_tables())
    digest = hashlib.sha256("".join(statements.split()).encode()).hexdigest()[:16]
    assert (revisions(migrations)[-1], digest) == expected
