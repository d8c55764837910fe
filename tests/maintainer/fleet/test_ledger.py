"""What is written down is there again, whole, whatever happens to the process."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlmodel import Session, SQLModel, text

from astraflow.contract.errors import Conflict, InvalidInput
from maintainer.fleet.ledger import Changes, Ledger, Ownership, open_ledger
from maintainer.fleet.records import PoolRecord
from tests.maintainer.fleet.parts import POOL, START, spec

pytestmark = pytest.mark.anyio


async def test_migrations_make_the_tables_that_the_code_describes(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()
    engine = create_engine(f"sqlite:///{tmp_path / 'fleet.sqlite'}")
    with engine.connect() as connection:
        ours = {name for name in SQLModel.metadata.tables if name.startswith("fleet_")}
        context = MigrationContext.configure(
            connection, opts={"include_name": lambda name, kind, _: kind != "table" or name in ours}
        )
        differences = [found for found in compare_metadata(context, SQLModel.metadata) if "fleet_" in repr(found)]
    engine.dispose()
    assert differences == []
    assert len(ours) == 9


async def test_every_commit_is_on_the_disk_before_it_is_answered(tmp_path: Path) -> None:
    database = open_ledger(tmp_path)

    def pragma(session: Session, name: str) -> object:
        return session.connection().execute(text(f"PRAGMA {name}")).scalar()

    assert database.do_now(lambda session: pragma(session, "synchronous")) == 2
    assert database.do_now(lambda session: pragma(session, "journal_mode")) == "wal"
    database.close()


async def test_a_ledger_has_one_owner(tmp_path: Path) -> None:
    with Ownership(tmp_path), pytest.raises(Conflict, match="another fleet service"), Ownership(tmp_path):
        pass
    with Ownership(tmp_path):
        pass


@pytest.mark.parametrize(
    "url", ["nonsense://someone:secret@there/db", "someone:secret@there", "sqlite:////no/such/secret"]
)
async def test_a_database_that_cannot_be_used_is_refused_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be used") as caught:
        open_ledger(tmp_path, url.replace("/secret", "/x"))
    assert "secret" not in str(caught.value)


async def test_a_caller_that_gives_up_leaves_memory_and_disk_alike(tmp_path: Path) -> None:
    database = open_ledger(tmp_path)
    ledger = await Ledger(database).load(now=START)
    pool = PoolRecord(spec=spec(), version=1, target=0)
    for version in range(2, 40):
        changed = replace(pool, version=version)
        task = asyncio.create_task(ledger.change(lambda _, changed=changed: (Changes(pools=(changed,)), None)))  # type: ignore[misc]  # a loop variable bound early
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    await ledger.change(lambda _: (Changes(), None))  # after all of them
    kept = await Ledger(database).load(now=START)
    assert kept.pools == ledger.pools
    assert ledger.pools[POOL].version == 39
    database.close()
