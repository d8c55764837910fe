"""Migrations and the current tables, on SQLite and on PostgreSQL."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, SQLModel

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.clock import SystemClock
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import running_web
from tests.web.page_elements import parsed
from web.database import db, run_records, tables
from web.database.db import open_database
from web.history import series_queries, series_writer
from web.history.samples import SECOND_LEVEL, Sample
from web.security.audit_log import AuditedCommand, AuditLog, Author

MIGRATIONS = Path(db.__file__).parent / "migrations"


def config_of(engine: Engine) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def differences(connection: Connection) -> list[Any]:
    """Returns the differences between a database and `web.database.tables`; ignores tables of the fleet."""
    ours = {table.__tablename__ for table in vars(tables).values() if hasattr(table, "__tablename__")}

    def is_ours(_object: object, name: str | None, kind: str, *_more: object) -> bool:
        return kind != "table" or name in ours

    context = MigrationContext.configure(connection, opts={"include_object": is_ours})
    return list(compare_metadata(context, SQLModel.metadata))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/web.sqlite"
    address: str = request.getfixturevalue("empty_postgres")
    return address


def test_the_migrations_lead_to_the_current_tables(tmp_path: Path, url: str) -> None:
    open_database(tmp_path, url).close()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()


def test_each_migration_can_be_taken_back(tmp_path: Path, url: str) -> None:
    open_database(tmp_path, url).close()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        config = config_of(engine)
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        connection.commit()
        command.upgrade(config, "head")
        connection.commit()
        assert differences(connection) == []
    engine.dispose()


@pytest.mark.anyio
async def test_audit_and_charts_behave_the_same_on_both_databases(tmp_path: Path, url: str) -> None:
    database = open_database(tmp_path, url)
    audit_log, author = AuditLog(database, clock=SystemClock()), Author(name="a", role="", via="", came_from="")
    hostile = "\0 \ud800 '; DROP TABLE users; -- %"
    await asyncio.gather(*(audit_log.write(author, AuditedCommand(action=f"a.{n}", reason=hostile)) for n in range(20)))
    verdict = await audit_log.verify()
    assert (verdict.problem, verdict.checked) == ("", 20)
    for statement in ("UPDATE audit_entries SET actor = 'b'", "DELETE FROM audit_entries"):
        with pytest.raises(DBAPIError, match="audit entries"):
            database.write_sync(lambda session, statement=statement: session.execute(text(statement)))  # type: ignore[misc] # lambda with a default
    database.write_sync(lambda session: audit_log.prune(session, before_at=time.time() + 60, author=author))
    assert (await audit_log.verify()).checked == 1

    for _ in range(2):
        database.write_sync(see)
    (row,) = database.read_sync(lambda session: series_queries.rows(session, 1, "policy/p", ("steps",)))
    assert row == (2.0, {"steps": 1.0})
    database.close()


def see(session: Session) -> None:
    """Records a run with one point."""
    sighting = run_records.SeenRun(
        name="r", recipe="", dataflow="", started_at=1.0, at=2.0, sequence=3, report_json="{}"
    )
    run_id = run_records.upsert_run_record(session, sighting, record_id=None)
    sample = Sample(level=SECOND_LEVEL, at=2.0, subject="policy/p", values={"steps": 1.0, "reward": None})
    series_writer.add(session, run_id, [sample], names=series_writer.series_ids(session, run_id))
    series_writer.roll(session, run_id, since=2.0, until=2.0)


@pytest.mark.long
@pytest.mark.anyio
async def test_the_whole_page_runs_on_postgresql(tmp_path: Path, empty_postgres: str) -> None:
    fake = FakeControlPlane(sequence=30)
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, database=empty_postgres) as web,
        web.logged_in() as admin,
        web.in_role(admin, "operator", name="bob") as bob,
    ):
        await web.until_live(bob)
        assert (await bob.post("/nodes/n0/drain", data={"reason": "slow"})).status_code == 303
        assert parsed(await bob.get("/audit/verify")).one(".chain-sentence").tone == "good"
        assert "slow" in (await bob.get("/audit?text=SLO")).text
        assert (await bob.get("/runs")).status_code == 200
    assert not (tmp_path / "web.sqlite").exists()


def test_the_error_of_an_unreachable_database_hides_its_password(tmp_path: Path) -> None:
    for url in ("postgresql://web:canary-pw@127.0.0.1:1/x", "nonsense", "mysql://web:canary-pw@h/x"):
        with pytest.raises(AstraFlowError) as problem:
            open_database(tmp_path, url)
        assert "canary-pw" not in str(problem.value)
