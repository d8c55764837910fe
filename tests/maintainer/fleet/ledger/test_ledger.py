"""The ledger restores all writes completely after a restart or a crash."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlmodel import Session, SQLModel
from sqlmodel import text as statement

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.fleet.instances import Instance, InstanceState, LaunchId
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PolicyId
from astraflow.runtime.database import Database
from maintainer.fleet.ledger import rows
from maintainer.fleet.ledger.ledger import Changes, Ledger, open_ledger
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from maintainer.fleet.ledger.ownership import directory_lock
from maintainer.fleet.ledger.records import LaunchRecord, PoolRecord
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Tags, fingerprint, join_arguments
from tests.errors import raises_code
from tests.maintainer.fleet.parts import ALICE, POOL, START, build, spec

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fleet.sqlite'}"
    address: str = request.getfixturevalue("empty_postgres")
    return address


async def test_migrations_create_the_declared_tables(tmp_path: Path, url: str) -> None:
    open_ledger(tmp_path, url).close()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        ours = {name for name in SQLModel.metadata.tables if name.startswith("fleet_")}
        context = MigrationContext.configure(
            connection, opts={"include_name": lambda name, kind, _: kind != "table" or name in ours}
        )
        differences = [
            difference for difference in compare_metadata(context, SQLModel.metadata) if "fleet_" in repr(difference)
        ]
    engine.dispose()
    assert differences == []
    assert len(ours) == 10


async def test_the_policies_of_a_pool_are_stored_and_reach_its_nodes(tmp_path: Path) -> None:
    solvers = spec(mode=Mode.ADVISE, policies=(PolicyId("solver"), PolicyId("verifier")))
    stored = PoolRecord(spec=solvers, version=1, target=2)
    assert rows.pool(rows.pool_row(stored)) == stored
    plans = (await build(tmp_path, pool=solvers)).fleet_manager.plans
    arguments = join_arguments(plans.launch(solvers), "node-1")
    assert arguments[arguments.index("--policies") + 1] == "solver,verifier"
    assert "--policies" not in join_arguments(plans.launch(spec()), "node-1")
    assert fingerprint(plans.launch(solvers)) != fingerprint(plans.launch(replace(solvers, policies=())))


def _record(launch: str, state: InstanceState) -> LaunchRecord:
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
    return LaunchRecord(instance=instance, launch=LaunchSpec(tags=tags, node=NodePlan(dataflow="127.0.0.1:1")))


async def test_every_commit_is_durable_before_its_answer(tmp_path: Path) -> None:
    database = open_ledger(tmp_path)

    def pragma(session: Session, name: str) -> object:
        return session.connection().execute(statement(f"PRAGMA {name}")).scalar()

    assert database.write_sync(lambda session: pragma(session, "synchronous")) == 2
    assert database.write_sync(lambda session: pragma(session, "journal_mode")) == "wal"
    database.close()


async def test_a_ledger_has_one_owner(tmp_path: Path) -> None:
    with (
        directory_lock(tmp_path),
        pytest.raises(Conflict, check=lambda problem: problem.code == "ledger.directory_in_use"),
        directory_lock(tmp_path),
    ):
        pass
    with directory_lock(tmp_path):
        pass


@pytest.mark.parametrize(
    "url", ["nonsense://someone:secret@there/db", "someone:secret@there", "sqlite:////no/such/secret"]
)
async def test_an_unusable_database_is_refused_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "database.unusable") as caught:
        open_ledger(tmp_path, url.replace("/secret", "/x"))
    assert "secret" not in str(caught.value)


async def test_the_newest_process_owns_the_ledger_and_the_older_one_ends(tmp_path: Path, url: str) -> None:
    database, other = open_ledger(tmp_path, url), open_ledger(tmp_path, url)
    first, second = await Ledger(database).load(now=START), await Ledger(other).load(now=START)
    pool = PoolRecord(spec=spec(), version=1, target=0)
    await first.take_ownership()
    await first.change(lambda _: (Changes(pools=(pool,)), None))
    await second.take_ownership()
    with pytest.raises(Conflict) as caught:
        await first.change(lambda _: (Changes(pools=(replace(pool, version=2),)), None))
    assert caught.value.code == "ledger.other_owner"
    with pytest.raises(Conflict) as caught:
        await first.check_owner()
    assert caught.value.code == "ledger.other_owner"
    assert first.pools[POOL].version == 1
    await second.check_owner()
    await second.change(lambda _: (Changes(pools=(replace(pool, version=3),)), None))
    assert (await Ledger(database).load(now=START)).pools[POOL].version == 3
    database.close()
    other.close()


async def test_everything_stored_is_read_unchanged(tmp_path: Path, url: str) -> None:
    parts = await build(tmp_path, database=open_ledger(tmp_path, url))
    await parts.want(3)
    await parts.pass_time(90.0)
    await parts.fleet_manager.set_hold(POOL, minutes=5, actor=ALICE, key="h", reason="umlauts äöü, quotes ' and \u2028")
    await parts.fleet_manager.kill_switch(KillScope.AGENTS, actor=ALICE, key="k", reason="a test")
    await parts.records.record_event(parts.ledger.alive()[0].id, InstanceEvent.PENDING)
    reloaded_ledger = await Ledger(parts.database).load(now=parts.clock.wall())
    assert (reloaded_ledger.pools, reloaded_ledger.records, reloaded_ledger.switch) == (
        parts.ledger.pools,
        parts.ledger.records,
        parts.ledger.switch,
    )
    assert reloaded_ledger.next_decision == parts.ledger.next_decision
    page, has_older = await reloaded_ledger.instances(pool=POOL, with_gone=True, before="", limit=2)
    assert ([record.id for record in page], has_older) == (sorted(reloaded_ledger.records, reverse=True)[:2], True)
    parts.database.close()


class LossyDatabase(Database):
    """Database whose connection ends right after a commit, while `is_cut`."""

    is_cut = False

    async def write(self, work: Callable[[Session], T]) -> T:
        result = await super().write(work)
        if self.is_cut:
            raise Unavailable("cannot reach the database", code="database.unreachable")
        return result


async def test_a_change_that_was_stored_in_an_outage_is_loaded_afterwards(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()
    database = LossyDatabase(create_engine(f"sqlite:///{tmp_path / 'fleet.sqlite'}"))
    ledger = await Ledger(database).load(now=START)
    await ledger.take_ownership()
    pool = PoolRecord(spec=spec(), version=1, target=0)
    database.is_cut = True
    with raises_code(Unavailable, "database.unreachable"):
        await ledger.change(lambda _: (Changes(pools=(pool,)), None))
    await ledger.check_owner()  # the outage lasts
    database.is_cut = False
    assert POOL not in ledger.pools
    await ledger.check_owner()
    assert ledger.pools[POOL] == pool
    await ledger.change(lambda current: (Changes(pools=(replace(current.pools[POOL], version=2),)), None))
    assert (await Ledger(database).load(now=START)).pools[POOL].version == 2
    database.close()


@pytest.mark.parametrize("text", ["nul \x00 inside", "half of a pair \ud800"])
async def test_values_that_a_database_cannot_store_are_refused_first(tmp_path: Path, url: str, text: str) -> None:
    parts = await build(tmp_path, database=open_ledger(tmp_path, url))
    with raises_code(InvalidInput, "fleet.invalid_reason", "text"):
        await parts.fleet_manager.set_hold(POOL, minutes=5, actor=ALICE, key="h", reason=text)
    assert (
        await parts.fleet_manager.set_hold(POOL, minutes=5, actor=ALICE, key="h", reason="fine")
    ).kind.value == "hold"
    parts.database.close()


@pytest.mark.long
async def test_a_cancelled_change_leaves_memory_and_disk_equal(tmp_path: Path, url: str) -> None:
    database = open_ledger(tmp_path, url)
    ledger = await Ledger(database).load(now=START)
    pool = PoolRecord(spec=spec(), version=1, target=0)
    for version in range(2, 40):
        changed = replace(pool, version=version)
        task = asyncio.create_task(ledger.change(lambda _, changed=changed: (Changes(pools=(changed,)), None)))  # type: ignore[misc]  # binds the loop variable
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    await ledger.change(lambda _: (Changes(), None))  # waits for all of them
    reloaded_ledger = await Ledger(database).load(now=START)
    assert reloaded_ledger.pools == ledger.pools
    assert ledger.pools[POOL].version == 39
    database.close()
