"""What is written down is there again, whole, whatever happens to the process."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlmodel import Session, SQLModel
from sqlmodel import text as statement

from astraflow.contract.causes import Cause
from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.fleet import Instance, InstanceState, KillScope, LaunchId
from maintainer.fleet import migrations, rows
from maintainer.fleet.ledger import Changes, Ledger, Ownership, open_ledger
from maintainer.fleet.lifecycle import Sight
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Tags
from maintainer.fleet.records import PoolRecord, Record
from tests.maintainer.fleet.parts import ALICE, POOL, START, build, spec

pytestmark = pytest.mark.anyio

MIGRATIONS = Path(migrations.__file__).parent


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fleet.sqlite'}"
    address: str = request.getfixturevalue("empty_postgres")
    return address


async def test_migrations_make_the_tables_that_the_code_describes(tmp_path: Path, url: str) -> None:
    open_ledger(tmp_path, url).close()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        ours = {name for name in SQLModel.metadata.tables if name.startswith("fleet_")}
        context = MigrationContext.configure(
            connection, opts={"include_name": lambda name, kind, _: kind != "table" or name in ours}
        )
        differences = [found for found in compare_metadata(context, SQLModel.metadata) if "fleet_" in repr(found)]
    engine.dispose()
    assert differences == []
    assert len(ours) == 10


async def test_of_earlier_launches_the_journal_knows_which_failed(tmp_path: Path, url: str) -> None:
    open_ledger(tmp_path, url).close()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    launches = (
        "insert into fleet_instances (id, pool, state, provider, handle, launch_json, type, region, is_spot, "
        "usd_per_hour, actor, reason, intended_at, expires_at, message, tries, next_try_at, missed, is_told) values "
        "(:id, 'eu', 'gone', 'p', '', '{}', '', '', false, 1, 'a', 'r', 1, 9, '', 0, 0, 0, false)"
    )
    journal = (
        "insert into fleet_decisions (ordinal, at, kind, pool, actor, role, reason, message, key) "
        "values (1, 7.5, 'launch_failed', 'eu', 'fleet', 'rule', 'boot', 'launch 01B failed, 1 in a row', '')"
    )
    with engine.connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "0004")
        for launch in ("01A", "01B"):
            connection.execute(statement(launches).bindparams(id=launch))
        connection.execute(statement(journal))
        command.upgrade(config, "head")
        found = connection.execute(statement("select id, cause from fleet_instances order by id")).all()
    engine.dispose()
    assert [tuple(row) for row in found] == [("01A", None), ("01B", "failed")]


async def test_a_ledger_from_before_causes_were_kept_goes_on_and_says_them_from_then_on(
    tmp_path: Path, url: str
) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, "0004")
        launch_row = rows.record_row(_record("01READY", InstanceState.READY)).model_dump(exclude={"cause"})
        gone_row = launch_row | {"id": "01GONE", "state": "gone", "gone_at": START, "draining_at": START - 60.0}
        going_row = launch_row | {"id": "01GOING", "state": "draining", "draining_at": START}
        columns = ", ".join(launch_row)
        values = ", ".join(f":{name}" for name in launch_row)
        insert = statement(f"INSERT INTO fleet_instances ({columns}) VALUES ({values})")  # noqa: S608 (our own names)
        for row in (launch_row, gone_row, going_row):
            connection.execute(insert.bindparams(**row))
        connection.commit()
    engine.dispose()
    database = open_ledger(tmp_path, url)
    parts = await build(tmp_path, database=database)
    assert {record.id: record.instance.cause for record in parts.ledger.records.values()} == {
        "01READY": None,
        "01GONE": None,
        "01GOING": None,
    }
    for launch in ("01READY", "01GOING"):
        await parts.fleet.see(LaunchId(launch), Sight.GOING)
    again = await build(tmp_path, database=database)
    assert again.ledger.records[LaunchId("01READY")].instance.cause is Cause.TAKEN
    assert again.ledger.records[LaunchId("01GOING")].instance.cause is None, "who made it go then is not known"
    database.close()


def _record(launch: str, state: InstanceState) -> Record:
    tags = Tags(cluster="tests", pool=POOL, run="run-1", expires_at=START + 1e6)
    instance = Instance(
        id=LaunchId(launch),
        pool=POOL,
        state=state,
        provider="cloud",
        handle="i-1",
        actor="alice",
        reason="a test",
        intended_at=START - 600.0,
        expires_at=START + 1e6,
        launched_at=START - 600.0,
        ready_at=START - 500.0,
    )
    return Record(instance=instance, launch=LaunchSpec(tags=tags, node=NodePlan(dataflow="127.0.0.1:1")))


async def test_every_commit_is_on_the_disk_before_it_is_answered(tmp_path: Path) -> None:
    database = open_ledger(tmp_path)

    def pragma(session: Session, name: str) -> object:
        return session.connection().execute(statement(f"PRAGMA {name}")).scalar()

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


async def test_whoever_starts_last_writes_the_ledger_and_the_one_before_ends(tmp_path: Path, url: str) -> None:
    database, other = open_ledger(tmp_path, url), open_ledger(tmp_path, url)
    first, second = await Ledger(database).load(now=START), await Ledger(other).load(now=START)
    pool = PoolRecord(spec=spec(), version=1, target=0)
    await first.own()
    await first.change(lambda _: (Changes(pools=(pool,)), None))
    await second.own()
    with pytest.raises(Conflict, match="one service writes it at a time"):
        await first.change(lambda _: (Changes(pools=(replace(pool, version=2),)), None))
    with pytest.raises(Conflict, match="one service writes it at a time"):
        await first.check_owner()
    assert first.pools[POOL].version == 1
    await second.check_owner()
    await second.change(lambda _: (Changes(pools=(replace(pool, version=3),)), None))
    assert (await Ledger(database).load(now=START)).pools[POOL].version == 3
    database.close()
    other.close()


async def test_everything_that_is_kept_is_read_as_it_was_written(tmp_path: Path, url: str) -> None:
    parts = await build(tmp_path, database=open_ledger(tmp_path, url))
    await parts.want(3)
    await parts.pass_time(90.0)
    await parts.desk.hold(POOL, minutes=5, actor=ALICE, key="h", reason="umlauts äöü, quotes ' and \u2028")
    await parts.desk.kill_switch(KillScope.AGENTS, actor=ALICE, key="k", reason="a test")
    await parts.fleet.see(parts.ledger.alive()[0].id, Sight.PENDING)
    kept = await Ledger(parts.database).load(now=parts.clock.wall())
    assert (kept.pools, kept.records, kept.switch) == (parts.ledger.pools, parts.ledger.records, parts.ledger.switch)
    assert kept.next_decision == parts.ledger.next_decision
    page, has_older = await kept.instances(pool=POOL, with_gone=True, before="", limit=2)
    assert ([record.id for record in page], has_older) == (sorted(kept.records, reverse=True)[:2], True)
    parts.database.close()


@pytest.mark.parametrize("text", ["nul \x00 inside", "half of a pair \ud800"])
async def test_what_a_database_cannot_keep_is_refused_before_it_is_tried(tmp_path: Path, url: str, text: str) -> None:
    parts = await build(tmp_path, database=open_ledger(tmp_path, url))
    with pytest.raises(InvalidInput, match="text"):
        await parts.desk.hold(POOL, minutes=5, actor=ALICE, key="h", reason=text)
    assert (await parts.desk.hold(POOL, minutes=5, actor=ALICE, key="h", reason="fine")).kind == "hold"
    parts.database.close()


async def test_a_caller_that_gives_up_leaves_memory_and_disk_alike(tmp_path: Path, url: str) -> None:
    database = open_ledger(tmp_path, url)
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
