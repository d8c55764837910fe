"""Time series: rollups preserve the meaning of values, age limits prune them, and reads choose the level."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session, select

from astraflow.contract.ids import NodeId
from astraflow.contract.reports.report import Report
from tests.fakes.synthetic_run import SyntheticRun
from web.database import run_records
from web.database.db import Database, open_database
from web.database.tables import SeriesFiveMinutes, SeriesName, SeriesSecond, SeriesTenSeconds
from web.history import series_queries, series_writer
from web.history.samples import FIVE_MINUTE_LEVEL, LEVELS, SECOND_LEVEL, TEN_SECOND_LEVEL, NodeBuckets, Sample

BEGAN_AT = 1_800_000_000.0
"""Unix time. A multiple of five minutes."""


def upsert_run_record(session: Session) -> int:
    sighting = run_records.SeenRun(
        name="r", recipe="", dataflow="", started_at=BEGAN_AT, at=BEGAN_AT, sequence=1, report_json="{}"
    )
    return run_records.upsert_run_record(session, sighting, record_id=None)


def record(database: Database, numbers: Sequence[tuple[float, float]], *, flush_every: int = 7) -> int:
    """Writes (second, number) pairs as the recorder does, with a rollup after each portion; returns the run's id."""
    run_id = database.write_sync(upsert_run_record)
    for index in range(0, len(numbers), flush_every):
        some = numbers[index : index + flush_every]
        samples = [
            Sample(
                level=SECOND_LEVEL, at=BEGAN_AT + second, subject="policy/p", values={"wait": number, "steps": number}
            )
            for second, number in some
        ]
        database.write_sync(lambda session, samples=samples: flush(session, run_id, samples))  # type: ignore[misc] # lambda with a default
    return run_id


def flush(session: Session, run_id: int, samples: list[Sample]) -> None:
    series_writer.add(session, run_id, samples, names=series_writer.series_ids(session, run_id))
    series_writer.roll(session, run_id, since=samples[0].at, until=samples[-1].at)


def rows(database: Database, run_id: int, **options: Any) -> list[tuple[float, float | None]]:
    """Returns the recorded (second, wait) pairs."""
    stored_rows = database.read_sync(
        lambda session: series_queries.rows(session, run_id, "policy/p", ("wait",), **options)
    )
    return [(at - BEGAN_AT, numbers["wait"]) for at, numbers in stored_rows]


def test_ten_second_rows_have_the_mean_minimum_and_maximum_of_their_seconds(database: Database) -> None:
    record(database, [(second, float(second % 10)) for second in range(45)])

    stored_rows = database.read_sync(lambda session: session.exec(select(SeriesTenSeconds)).all())
    assert {(row.at - BEGAN_AT, row.number, row.low, row.high) for row in stored_rows} == {
        (start, 4.5, 0.0, 9.0) for start in (0, 10, 20, 30)
    }


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.integers(1, 90), min_size=1, max_size=80),
    flush_every=st.integers(1, 40),
    numbers=st.data(),
)
def test_rollups_do_not_depend_on_the_size_of_writes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], flush_every: int, numbers: st.DataObject
) -> None:
    database = open_database(tmp_path_factory.mktemp("history"))
    second, given_numbers = 0, []
    for step in steps:
        second += step
        given_numbers.append((second, float(numbers.draw(st.integers(-5, 5)))))
    record(database, given_numbers, flush_every=flush_every)

    expected = {}
    for start in range(0, second // 10 * 10, 10):
        inside = [number for at, number in given_numbers if start <= at < start + 10]
        if inside:
            expected[float(start)] = (round(statistics.fmean(inside), 9), min(inside), max(inside))
    stored_rows = database.read_sync(
        lambda session: session.exec(select(SeriesTenSeconds).join(SeriesName).where(SeriesName.value == "wait")).all()
    )
    database.close()
    assert {row.at - BEGAN_AT: (round(row.number, 9), row.low, row.high) for row in stored_rows} == expected


@pytest.mark.long
def test_a_long_range_is_read_in_coarse_rows_up_to_the_newest_second(database: Database) -> None:
    run_id = record(database, [(second, 0.5) for second in range(4004)], flush_every=500)

    stored_rows = rows(database, run_id, at_most=405)

    assert [at for at, _ in stored_rows[:3]] == [0, 10, 20]
    assert [at for at, _ in stored_rows[-4:]] == [4000, 4001, 4002, 4003]
    assert {number for _, number in stored_rows} == {0.5}
    assert len(stored_rows) == 404


def test_a_range_has_five_minute_then_ten_second_then_second_rows(database: Database) -> None:
    run_id = record(database, [(second, 1.0) for second in range(637)], flush_every=500)

    stored_rows = [at for at, _ in rows(database, run_id, at_most=12)]

    assert stored_rows == [0, 300, 600, 610, 620, 630, 631, 632, 633, 634, 635, 636]


def test_a_short_range_is_read_by_the_second(database: Database) -> None:
    run_id = record(database, [(second, float(second)) for second in range(700)], flush_every=500)

    stored_rows = rows(database, run_id, since=BEGAN_AT + 100, until=BEGAN_AT + 103)

    assert stored_rows == [(100, 100.0), (101, 101.0), (102, 102.0)]


def test_adjacent_rows_are_merged_by_their_mean(database: Database) -> None:
    run_id = record(database, [(second, float(second)) for second in range(100)], flush_every=50)

    assert rows(database, run_id, at_most=25) == [(first, first + 1.5) for first in range(0, 100, 4)]


@pytest.mark.long
def test_counts_are_read_as_the_maximum_of_a_range(database: Database) -> None:
    run_id = record(database, [(second, float(second)) for second in range(1200)], flush_every=500)

    ((at, numbers), *_) = database.read_sync(
        lambda session: series_queries.rows(session, run_id, "policy/p", ("steps", "wait"), at_most=130)
    )

    assert (at, numbers) == (BEGAN_AT, {"steps": 9.0, "wait": 4.5})


@pytest.mark.long
def test_values_older_than_a_level_are_read_from_the_next_level(database: Database) -> None:
    run_id = record(database, [(second, 1.0) for second in range(1000)], flush_every=500)
    now = BEGAN_AT + SECOND_LEVEL.retention_s + 500
    database.write_sync(lambda session: series_writer.prune(session, run_id, now=now))

    stored_rows = [at for at, _ in rows(database, run_id)]

    assert stored_rows[:3] == [0, 10, 20], "only ten-second rows are left"
    assert stored_rows[-2:] == [998, 999]
    assert 500 in stored_rows
    assert 501 in stored_rows


def test_series_without_rows_are_removed(database: Database) -> None:
    run_id = record(database, [(0, 1.0)])
    later = BEGAN_AT + max(level.retention_s for level in LEVELS) + 1
    database.write_sync(lambda session: series_writer.prune(session, run_id, now=later))

    assert database.read_sync(lambda session: session.exec(select(SeriesName)).all()) == []
    assert rows(database, run_id) == []


def test_seconds_written_twice_are_stored_once(database: Database) -> None:
    run_id = record(database, [(0, 1.0), (1, 2.0), (1, 9.0), (0, 9.0)], flush_every=2)

    assert rows(database, run_id) == [(0, 1.0), (1, 2.0)]


@pytest.mark.long
def test_five_minute_rows_are_computed_from_ten_second_rows(database: Database) -> None:
    record(database, [(second, float(second >= 150)) for second in range(601)], flush_every=100)

    stored_rows = database.read_sync(lambda session: session.exec(select(SeriesFiveMinutes)).all())
    first = [row for row in stored_rows if row.at == BEGAN_AT]
    assert {(row.number, row.low, row.high) for row in first} == {(0.5, 0.0, 1.0)}
    assert len({row.at for row in stored_rows}) == 2
    assert FIVE_MINUTE_LEVEL.width_s == 300


def busy_report(synthetic_run: SyntheticRun, second: int, *, busy_s: float, heartbeat_age_s: float) -> Report:
    report = synthetic_run.report(second)
    nodes = tuple(
        dataclasses.replace(node, heartbeat_age_s=heartbeat_age_s, counters={"busy_s": busy_s, "blocked_s": busy_s / 4})
        for node in report.nodes
    )
    return dataclasses.replace(report, nodes=nodes)


def test_the_busy_share_of_a_node_follows_its_counters_between_heartbeats() -> None:
    synthetic_run, buckets = SyntheticRun(nodes=("a",)), NodeBuckets()
    stored_samples: list[Sample] = []
    for second in range(40):
        heartbeat = second // 3 * 3  # the node sends a heartbeat every three seconds
        stored_samples += buckets.add(
            busy_report(synthetic_run, second, busy_s=0.8 * heartbeat, heartbeat_age_s=second - heartbeat)
        )

    assert [sample.at - synthetic_run.began_at for sample in stored_samples] == [0, 10, 20]
    assert [sample.values["busy"] for sample in stored_samples] == [pytest.approx(0.8)] * 3
    assert [sample.values["blocked"] for sample in stored_samples] == [pytest.approx(0.2)] * 3
    assert {sample.subject for sample in stored_samples} == {"node/a"}
    assert {sample.level for sample in stored_samples} == {TEN_SECOND_LEVEL}


def test_the_system_gauges_of_a_node_are_recorded_where_it_reports_them() -> None:
    synthetic_run, buckets = SyntheticRun(nodes=("a",)), NodeBuckets()
    stored_samples: list[Sample] = []
    for second in range(1, 22):
        report = synthetic_run.report(second)
        gauges = {"process_cpu": 0.5, "process_memory": 1e9 + second, "lease_limit": 4.0}
        nodes = tuple(dataclasses.replace(node, gauges=gauges) for node in report.nodes)
        stored_samples += buckets.add(dataclasses.replace(report, nodes=nodes))
    values = stored_samples[-1].values

    assert (values["process_cpu"], values["gpu_memory"]) == (0.5, None)
    assert values["process_memory"] == 1e9 + 1 + (stored_samples[-1].at + 9 - synthetic_run.began_at - 1)
    assert "lease_limit" not in values


def test_the_busy_share_of_a_restarted_node_is_not_negative() -> None:
    synthetic_run, buckets = SyntheticRun(nodes=("a",)), NodeBuckets()
    stored_samples: list[Sample] = []
    for second in range(31):
        busy_s = float(second) if second < 15 else float(second - 15)
        stored_samples += buckets.add(busy_report(synthetic_run, second, busy_s=busy_s, heartbeat_age_s=0.0))

    assert all(0.0 <= (sample.values["busy"] or 0.0) <= 1.0 for sample in stored_samples)


def test_nodes_are_recorded_under_their_names() -> None:
    synthetic_run, buckets = SyntheticRun(nodes=("a", "b")), NodeBuckets()
    samples: list[Sample] = []
    for second in range(11):
        report = synthetic_run.report(second)
        nodes = tuple(dataclasses.replace(node, id=NodeId(f"n{index}")) for index, node in enumerate(report.nodes))
        samples += buckets.add(dataclasses.replace(report, nodes=nodes))

    assert [sample.subject for sample in samples] == ["node/a", "node/b"]
    assert SeriesSecond.__tablename__ == "series_seconds"
