"""Tests of the fleet manager, follower, reconciler and fault injection with the ledger on PostgreSQL."""

from collections.abc import Iterator

import pytest

from astraflow.runtime.database import Database
from maintainer.fleet.ledger.ledger import open_ledger
from tests.maintainer.fleet import parts
from tests.maintainer.fleet.changes.test_fleet_manager import *  # noqa: F403 (the same tests on another database)
from tests.maintainer.fleet.changes.test_follower import *  # noqa: F403
from tests.maintainer.fleet.instances.test_loss import *  # noqa: F403
from tests.maintainer.fleet.instances.test_reconciler import *  # noqa: F403

pytestmark = [pytest.mark.anyio, pytest.mark.long]  # type: ignore[assignment]  # the imported modules have one mark


@pytest.fixture(autouse=True)
def on_postgresql(
    empty_postgres: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Makes every ledger of a test use a freshly migrated PostgreSQL database."""
    database = open_ledger(tmp_path_factory.mktemp("ledger"), empty_postgres)

    def the_database() -> Database:
        return database

    monkeypatch.setattr(parts, "memory_database", the_database)
    yield
    database.close()
