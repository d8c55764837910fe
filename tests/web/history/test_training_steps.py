"""Training metrics in the history: one row for each step, at every level of detail."""

import dataclasses
import math
from pathlib import Path

import pytest
from sqlmodel import Session

from astraflow.contract.reports.report import Report
from tests import make
from tests.fakes.clock import ManualClock
from tests.fakes.synthetic_run import METRICS, SyntheticRun
from tests.web.runs.test_run_list import filled, record
from web.database.db import Database, open_database
from web.history import series_writer
from web.history.points import Series
from web.history.recorder import Recorder
from web.history.samples import DAY_S, SECOND_LEVEL, TEN_SECOND_LEVEL, Sample, training_subject
from web.history.series_queries import Row
from web.history.training_steps import MAX_OTHER_METRICS, STEP, TrainingSteps, training_rows

pytestmark = pytest.mark.anyio

SECONDS = 60


def with_step(steps: int, metrics: dict[str, float], *, at: float = 1000.0) -> Report:
    report = SyntheticRun().report(SECONDS)
    stream = make.changed_stream(report.streams[0], steps=steps, metrics=metrics)
    return dataclasses.replace(report, at=at, streams=(stream,))


def rows_of(database: Database, policy: str = "solver") -> list[Row]:
    return database.read_sync(lambda session: training_rows(session, 1, policy))


@pytest.mark.long
async def test_each_step_is_recorded_once_with_its_metrics_for_each_policy(tmp_path: Path) -> None:
    database, synthetic_run, series = open_database(tmp_path), SyntheticRun(policies=("solver", "verifier")), Series()
    for seconds in (range(1, SECONDS), range(SECONDS - 10, SECONDS + 1)):  # the second recorder is a restarted process
        recorder = Recorder(database, dataflow="127.0.0.1:1", recipe="reverse", clock=ManualClock())
        for second in seconds:
            report = synthetic_run.report(second)
            recorder.add(report, series.add(report))
        await recorder.flush()
    last = synthetic_run.report(SECONDS)

    for stream in last.streams:
        rows = rows_of(database, stream.policy)
        assert [numbers[STEP] for _, numbers in rows] == list(range(1, stream.training.steps + 1))
        assert rows[-1][1] == {STEP: stream.training.steps, **stream.training.metrics}
        assert rows[-1][1].keys() == {STEP, *METRICS}
    database.close()


def test_a_report_without_a_new_step_adds_nothing() -> None:
    steps = TrainingSteps()

    assert steps.add(with_step(0, {})) == []
    (sample,) = steps.add(with_step(1, {"loss": 0.5}))
    assert steps.add(with_step(1, {"loss": 0.5})) == []
    assert (sample.subject, sample.values) == (training_subject("solver"), {STEP: 1, "loss": 0.5})


def test_numbers_that_are_not_finite_and_measurements_of_a_publish_are_left_out() -> None:
    (sample,) = TrainingSteps().add(with_step(3, {"loss": math.nan, "grad_norm": math.inf, "published_version": 2.0}))

    assert sample.values == {STEP: 3}


def test_names_that_a_trainer_chooses_are_bounded() -> None:
    steps = TrainingSteps()
    names = [f"own_{number}" for number in range(2 * MAX_OTHER_METRICS)]
    (first,) = steps.add(with_step(1, {"entropy": 1.0, **dict.fromkeys(names, 1.0)}))
    (second,) = steps.add(with_step(2, {"entropy": 1.0, names[0]: 2.0, names[-1]: 2.0, STEP: 9.0}))

    assert len(first.values) == 2 + MAX_OTHER_METRICS
    assert second.values == {STEP: 2, "entropy": 1.0, names[0]: 2.0}


@pytest.mark.long
async def test_a_long_run_with_slow_steps_is_read_step_by_step_and_a_fast_one_merged(tmp_path: Path) -> None:
    await filled(tmp_path, record("slow", seconds=60_000), record("fast", seconds=4000))
    database = open_database(tmp_path, "")
    for run_id, interval_s, steps in ((1, 60.0, 1000), (2, 1.0, 4000)):
        samples = [
            Sample(
                level=SECOND_LEVEL,
                at=step * interval_s,
                subject=training_subject("solver"),
                values={STEP: step, "entropy": float(step % 2), "mismatch_max": float(step % 2)},
            )
            for step in range(1, steps + 1)
        ]

        def write(session: Session, run_id: int = run_id, samples: list[Sample] = samples) -> None:
            series_writer.add(session, run_id, samples, names={})
            series_writer.roll(session, run_id, since=samples[0].at, until=samples[-1].at + 1000)

        await database.write(write)
    slow = database.read_sync(lambda session: training_rows(session, 1, "solver", at_most=1000))
    fast = database.read_sync(lambda session: training_rows(session, 2, "solver", at_most=400))

    assert [numbers[STEP] for _, numbers in slow] == list(range(1, 1001)), "over 16 hours"
    assert len(fast) <= 400
    assert fast[-1][1][STEP] == 4000
    assert {numbers["mismatch_max"] for _, numbers in fast[:-1]} == {1.0}, "the largest"
    assert all(numbers["entropy"] == pytest.approx(0.5, abs=0.1) for _, numbers in fast[:-1]), "the mean"
    database.close()


async def test_steps_are_retained_longer_than_other_figures(tmp_path: Path) -> None:
    await filled(tmp_path, record("one", seconds=60))
    database = open_database(tmp_path, "")
    subjects = ("policy/solver", training_subject("solver"))
    samples = [Sample(level=TEN_SECOND_LEVEL, at=10.0, subject=name, values={STEP: 1.0}) for name in subjects]
    await database.write(lambda session: series_writer.add(session, 1, samples, names={}))
    await database.write(lambda session: series_writer.prune(session, 1, now=10.0 + 30 * DAY_S))

    assert [numbers[STEP] for _, numbers in rows_of(database)] == [1.0]
    assert database.read_sync(lambda session: series_writer.series_ids(session, 1)).keys() == {(subjects[1], STEP)}
    database.close()
