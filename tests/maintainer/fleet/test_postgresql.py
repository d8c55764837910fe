"""The ledger on PostgreSQL: what the desk, the follower, the reconciler and the faults promise holds there too."""

from collections.abc import Iterator

import pytest

from astraflow.runtime.database import Database
from maintainer.fleet.ledger import open_ledger
from tests.maintainer.fleet import parts
from tests.maintainer.fleet.test_desk import *  # noqa: F403 (the same tests, here on another database)
from tests.maintainer.fleet.test_follower import *  # noqa: F403
from tests.maintainer.fleet.test_loss import *  # noqa: F403
from tests.maintainer.fleet.test_reconciler import *  # noqa: F403

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def on_postgresql(
    empty_postgres: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Every ledger that a test has made is this database, migrated from nothing."""
    database = open_ledger(tmp_path_factory.mktemp("ledger"), empty_postgres)

    def the_database() -> Database:
        return database

    monkeypatch.setattr(parts, "memory_database", the_database)
    yield
    database.close()
