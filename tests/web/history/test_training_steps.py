"""Training steps in the page's database: every one, exactly, also after outages and restarts of the page."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepPage, TrainingStepQuery
from astraflow.contract.training_metrics import ROLLOUT_REWARD
from astraflow.runtime.folders.run_folders import RunFolder
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.fakes.recorded_run import fill, recorded_archive, run_folder
from tests.fakes.synthetic_run import METRICS, SyntheticRun
from tests.web.runs.test_run_list import filled, record
from web.database.db import Database, open_database
from web.history.backfill import backfill_database
from web.history.points import Series
from web.history.recorder import Recorder
from web.history.series_queries import Row
from web.history.step_recorder import StepRecorder, copy_steps
from web.history.training_steps import (
    MAX_OTHER_METRICS,
    STEP,
    TOTAL_EPISODES,
    TOTAL_TOKENS,
    VERSION,
    TrainingRows,
    add_steps,
    training_rows,
)

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")
LOSSES = (0.1, 1 / 3, -5e-324, 1e17 + 2.0, math.pi)
"""Values that only a float64 represents."""


def training_step(number: int, **metrics: float) -> TrainingStep:
    return TrainingStep(
        policy=SOLVER, step=number, at=1000.0 + number / 3, version=Version(number), total_tokens=100 * number,
        total_episodes=8 * number, reward=number / 7, metrics=metrics,
    )  # fmt: skip


class Steps:
    """A dataflow with steps, which may be unreachable."""

    def __init__(self, steps: list[TrainingStep], *, page: int = 2) -> None:
        self.steps, self.page, self.is_reachable = steps, page, True
        self.calls = 0

    async def training_steps(self, query: TrainingStepQuery) -> TrainingStepPage:
        """Returns a small page."""
        self.calls += 1
        if not self.is_reachable:
            raise Unavailable("cannot reach dataflow: it is away; wait", code="test.away")
        following = [step for step in self.steps if step.policy == query.policy and step.step > query.after]
        return TrainingStepPage(steps=tuple(following[: self.page]), has_more=len(following) > self.page)


async def opened(directory: Path, *steps: TrainingStep) -> Database:
    """Returns the database of a page with one run and these steps."""
    await filled(directory, record("one", seconds=60))
    database = open_database(directory, "")
    await database.write(lambda session: add_steps(session, 1, steps))
    return database


def rows_of(database: Database, policy: str = "solver", *, run_id: int = 1) -> list[Row]:
    return database.read_sync(lambda session: training_rows(session, run_id, policy)).rows


def thinned(database: Database, *, at_most: int, metric: str = "") -> TrainingRows:
    return database.read_sync(lambda session: training_rows(session, 1, "solver", at_most=at_most, metric=metric))


async def test_every_step_is_copied_once_and_read_back_exactly(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    steps = [training_step(number, loss=loss) for number, loss in enumerate(LOSSES, start=1)]
    source = Steps([*steps, replace(steps[0], policy=PolicyId("judge"))])
    for _ in range(2):
        await copy_steps(source, database, 1, [SOLVER, PolicyId("judge")])

    expected = [
        (step.at, {STEP: step.step, VERSION: step.version, TOTAL_TOKENS: step.total_tokens,
                   TOTAL_EPISODES: step.total_episodes, ROLLOUT_REWARD: step.reward, **step.metrics})
        for step in steps
    ]  # fmt: skip
    assert rows_of(database) == expected
    assert rows_of(database, "judge") == expected[:1]
    database.close()


async def test_the_page_has_the_steps_of_an_outage_and_of_a_time_without_it(tmp_path: Path) -> None:
    database, synthetic_run, series = open_database(tmp_path), SyntheticRun(), Series()
    source = Steps([], page=500)

    async def follow(seconds: tuple[int, ...]) -> None:
        """Follows the run as a page that is started, sees these seconds and ends."""
        recorder = Recorder(database, dataflow="127.0.0.1:1", recipe="reverse", clock=ManualClock())
        steps = StepRecorder(source, recorder, database, clock=ManualClock(), on_steps=lambda *_: None)
        for second in seconds:
            report = synthetic_run.report(second)
            recorder.add(report, series.add(report))
            await recorder.flush()
            query = TrainingStepQuery(policy=SOLVER)
            source.steps = list(synthetic_run.training_steps(second, query).steps)
            await steps.copy()

    await follow((10, 11))
    source.is_reachable = False
    await follow((20, 21))
    assert len(rows_of(database)) == 6
    source.is_reachable = True
    await follow((60, 60, 60))

    rows = rows_of(database)
    assert [numbers[STEP] for _, numbers in rows] == list(range(1, 51))
    assert rows[-1][1].keys() == {STEP, VERSION, TOTAL_TOKENS, TOTAL_EPISODES, ROLLOUT_REWARD, *METRICS}
    assert source.calls == 5, "dataflow is asked only when a report shows new steps, or the last copy failed"
    database.close()


async def test_the_archive_of_an_ended_run_fills_the_page_with_every_step(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    steps = tuple(training_step(number, loss=number / 9) for number in range(1, 61))
    archive = recorded_archive(folder)
    fill(archive, reports=(SyntheticRun().report(30),), steps=steps)
    archive.close()
    database = open_database(tmp_path / "page")
    await backfill_database(RunFolder(folder), database)

    assert [numbers["loss"] for _, numbers in rows_of(database)] == [number / 9 for number in range(1, 61)]
    database.close()


async def test_numbers_that_are_not_finite_and_measurements_of_a_publish_are_left_out(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    step = training_step(3, loss=math.nan, grad_norm=math.inf, published_version=2.0, entropy=0.5)
    await copy_steps(Steps([replace(step, reward=math.nan)]), database, 1, [SOLVER])

    ((_, values),) = rows_of(database)
    assert values.keys() == {STEP, VERSION, TOTAL_TOKENS, TOTAL_EPISODES, ROLLOUT_REWARD, "entropy"}
    database.close()


@pytest.mark.parametrize("numbers", [(1, 1), (2, 1), (0,)])
async def test_steps_out_of_order_are_refused(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    database = await opened(tmp_path)
    source = Steps([training_step(number) for number in numbers])
    source.training_steps = lambda query: page_of(source.steps)  # type: ignore[method-assign]  # a faulty service
    with raises_code(InvalidInput, "history.steps_out_of_order"):
        await copy_steps(source, database, 1, [SOLVER])
    assert rows_of(database) == []
    database.close()


async def page_of(steps: list[TrainingStep]) -> TrainingStepPage:
    return TrainingStepPage(steps=tuple(steps), has_more=True)


async def test_a_step_of_an_impossible_time_is_refused(tmp_path: Path) -> None:
    database = await opened(tmp_path)
    with raises_code(InvalidInput, "history.invalid_step"):
        await copy_steps(Steps([replace(training_step(1), at=1e12)]), database, 1, [SOLVER])
    database.close()


async def test_names_that_a_trainer_chooses_are_bounded(tmp_path: Path) -> None:
    names = [f"own_{number}" for number in range(2 * MAX_OTHER_METRICS)]
    first = training_step(1, entropy=1.0, **dict.fromkeys(names, 1.0))
    second = training_step(2, entropy=1.0, **{names[0]: 2.0, names[-1]: 2.0, STEP: 9.0})
    database = await opened(tmp_path, first, second)

    rows = rows_of(database)
    assert len(rows[0][1]) == 6 + MAX_OTHER_METRICS
    assert rows[1][1].keys() == {
        STEP, VERSION, TOTAL_TOKENS, TOTAL_EPISODES, ROLLOUT_REWARD, "entropy", names[0],
    }  # fmt: skip
    assert rows[1][1][STEP] == 2
    database.close()


async def test_rows_of_a_long_run_are_whole_steps_with_the_spikes_of_all_metrics_or_extremes_of_one(
    tmp_path: Path,
) -> None:
    spikes = {500: 9.0, 501: -9.0}
    steps = [
        training_step(number, loss=spikes.get(number, 1.0 / number), entropy=0.1 if number == 777 else 0.5)
        for number in range(1, 1001)
    ]
    database = await opened(tmp_path, *steps)
    by_step = {step.step: step for step in steps}

    whole, spaced = thinned(database, at_most=1000), thinned(database, at_most=100)
    extremes = thinned(database, at_most=100, metric="loss")

    assert (len(whole.rows), whole.thinned_from) == (1000, None)
    numbers = [int(values[STEP] or 0) for _, values in spaced.rows]
    assert (numbers == sorted(set(numbers)), len(numbers), spaced.thinned_from) == (True, 100, 1000)
    assert {1, 22, 43, 500, 501, 777, 1000} <= set(numbers), "evenly spaced, and the spikes"
    shown = [int(values[STEP] or 0) for _, values in extremes.rows]
    assert (shown == sorted(shown), len(shown) <= 100, extremes.thinned_from) == (True, True, 1000)
    assert {1, 500, 501, 1000} <= set(shown)
    for _, values in (*spaced.rows, *extremes.rows):
        assert values["loss"] == by_step[int(values[STEP] or 0)].metrics["loss"]
    database.close()


async def test_a_time_range_has_its_steps_only(tmp_path: Path) -> None:
    database = await opened(tmp_path, *(training_step(number) for number in range(1, 31)))
    part = database.read_sync(lambda session: training_rows(session, 1, "solver", since=1002.0, until=1004.0))

    assert [values[STEP] for _, values in part.rows] == [6, 7, 8, 9, 10, 11]
    database.close()
