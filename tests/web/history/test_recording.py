"""The recorder: data that it keeps of a run, and recording that does not delay the live feed."""

import dataclasses
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.plugins import PlannedPlugins, PluginSlot
from tests import make
from tests.fakes.clock import ManualClock
from tests.fakes.synthetic_run import SyntheticRun
from web.database import run_records
from web.database.db import Database, open_database
from web.history import series_queries
from web.history.points import VALUES, Series
from web.history.recorder import Recorder
from web.history.report_json import report_from_json, report_to_json
from web.history.samples import policy_subject

pytestmark = pytest.mark.anyio


def recorder_for(database: Database) -> Recorder:
    return Recorder(database, dataflow="127.0.0.1:1", recipe="reverse", clock=ManualClock())


def feed(recorder: Recorder, synthetic_run: SyntheticRun, series: Series, seconds: range) -> None:
    for second in seconds:
        report = synthetic_run.report(second)
        recorder.add(report, series.add(report))


def rows_of(database: Database, policy: str, *, run_id: int = 1, at_most: int = 1000) -> list[series_queries.Row]:
    subject = policy_subject(policy)
    return database.read_sync(lambda session: series_queries.rows(session, run_id, subject, VALUES, at_most=at_most))


def seconds_of(synthetic_run: SyntheticRun, rows: list[series_queries.Row]) -> list[int]:
    return [round(at - synthetic_run.began_at) for at, _ in rows]


async def test_a_restarted_page_that_reads_the_history_goes_on_with_the_record_of_the_run(tmp_path: Path) -> None:
    database, synthetic_run = open_database(tmp_path), SyntheticRun()
    other = dataclasses.replace(synthetic_run, began_at=synthetic_run.began_at + 500)
    for run, seconds in ((synthetic_run, (30,)), (synthetic_run, (10, 40)), (other, (5,))):
        recorder = recorder_for(database)
        for second in seconds:
            feed(recorder, run, Series(), range(second, second + 1))
            await recorder.flush()
    records = database.read_sync(run_records.runs)
    database.close()

    assert [(record.id, record.last_sequence) for record in records] == [(2, 5), (1, 40)]


@pytest.mark.long
async def test_points_and_the_last_report_are_stored_and_read_back(tmp_path: Path) -> None:
    database, synthetic_run = open_database(tmp_path), SyntheticRun(policies=("solver", "verifier"))
    recorder = recorder_for(database)
    feed(recorder, synthetic_run, Series(), range(1, 31))
    await recorder.flush()
    record = database.write_sync(lambda session: run_records.run(session, 1))
    rows = rows_of(database, "verifier")

    assert record is not None
    assert (record.name, record.last_sequence, record.recipe) == ("reverse-0001", 30, "reverse")
    assert seconds_of(synthetic_run, rows) == list(range(1, 31))
    point = Series().add(synthetic_run.report(30))
    assert point is not None
    assert rows[-1][1] == {name: getattr(point.policies[PolicyId("verifier")], name) for name in VALUES}
    assert report_from_json(record.report_json).streams == synthetic_run.report(30).streams


async def test_a_restarted_process_continues_the_record_without_duplicates(tmp_path: Path) -> None:
    database, synthetic_run = open_database(tmp_path), SyntheticRun()
    first = recorder_for(database)
    feed(first, synthetic_run, Series(), range(1, 11))
    await first.flush()
    second = recorder_for(database)
    feed(second, synthetic_run, Series(), range(1, 21))
    await second.flush()

    assert second.run_id == first.run_id
    assert seconds_of(synthetic_run, rows_of(database, "solver")) == list(range(1, 21))


async def test_another_run_gets_its_own_record(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    recorder = recorder_for(database)
    feed(recorder, SyntheticRun(), Series(), range(1, 11))
    await recorder.flush()
    feed(recorder, SyntheticRun(run="second"), Series(), range(1, 4))
    await recorder.flush()
    again = recorder_for(database)
    feed(again, SyntheticRun(began_at=SyntheticRun().began_at + 60), Series(), range(1, 4))
    await again.flush()

    records = database.write_sync(run_records.runs)
    assert sorted((record.name, record.last_sequence) for record in records) == [
        ("reverse-0001", 3),
        ("reverse-0001", 10),
        ("second", 3),
    ]


async def test_points_are_queued_while_the_database_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(tmp_path)
    recorder, series, synthetic_run = recorder_for(database), Series(), SyntheticRun()
    feed(recorder, synthetic_run, series, range(1, 6))

    async def fail(_work: object) -> int:
        raise OperationalError("insert", {}, Exception("database or disk is full"))

    with monkeypatch.context() as broken:
        broken.setattr(database, "write", fail)
        with pytest.raises(OperationalError):
            await recorder.flush()
    feed(recorder, synthetic_run, series, range(6, 9))
    await recorder.flush()

    assert seconds_of(synthetic_run, rows_of(database, "solver")) == list(range(1, 9))


def test_a_report_with_numbers_that_are_not_finite_is_valid_json() -> None:
    report = SyntheticRun().report(50)
    stream = make.changed_stream(report.streams[0], wait_fraction=float("nan"), reward_mean=float("inf"))
    text = report_to_json(dataclasses.replace(report, streams=(stream,)))

    assert "NaN" not in text
    assert "Infinity" not in text
    assert report_from_json(text).streams[0].training.steps == stream.training.steps


def test_planned_plugins_are_read_back_unchanged() -> None:
    planned = PlannedPlugins(
        slot=PluginSlot.FILTERS, specs=({"kind": "keep_all"},), actor="ada", reason="looking", version=Version(3)
    )
    report = SyntheticRun().report(30)
    flow = dataclasses.replace(report.flows[0], planned=(planned,), filters=({"kind": "informative"},))
    stream = dataclasses.replace(report.streams[0], planned=(planned,))
    read = report_from_json(report_to_json(dataclasses.replace(report, flows=(flow,), streams=(stream,))))
    assert (read.flows, read.streams) == ((flow,), (stream,))
