"""Training steps: each acknowledged one is recorded exactly and once, in order, over crashes of dataflow."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.archive import training_steps as archived
from astraflow.client.offline_run import OfflineRun
from astraflow.contract.batches import StepReport
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import BatchId, PolicyId, Version
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepQuery
from astraflow.dataflow.history import training_steps as recorded
from astraflow.dataflow.run import Run
from tests.dataflow.running import Service, config, facts, opened, running
from tests.dataflow.test_service import episode
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")
ALL = TrainingStepQuery(policy=SOLVER)

LOSSES = (0.1, 1 / 3, -5e-324, 1e17 + 2.0, math.pi)
"""Values that only a float64 represents."""


async def train(
    service: Service, losses: tuple[float, ...], *, first: int = 0, metrics: Mapping[str, float] | None = None
) -> None:
    """Makes a step with each of these losses, from batches of two groups of two. metrics: more of each step."""
    node = (await service.nodes.join(facts("producer"))).node
    for number, loss in enumerate(losses, start=first):
        batch = None
        while batch is None:
            lease = await service.nodes.lease(node, 4, wait_s=0.5)
            await service.nodes.push(node, [episode(task) for task in lease.tasks])
            batch = await service.trainer().pull_batch(version=Version(number), wait_s=0.5)
        await service.trainer().report_step(report(number, {"loss": loss, **(metrics or {})}))


def report(number: int, metrics: Mapping[str, float]) -> StepReport:
    return StepReport(
        batch=BatchId(f"solver:{number}"), policy=SOLVER, version=Version(number + 1), wait_s=0.5, compute_s=1.5,
        publish_s=0.0, metrics=metrics,
    )  # fmt: skip


async def test_every_step_is_recorded_exactly_and_is_read_in_pages(tmp_path: Path) -> None:
    async with running(tmp_path / "dataflow", config(max_staleness=9)) as service:
        await train(service, LOSSES)
        page = await service.control.training_steps(ALL)
        first = await service.control.training_steps(replace(ALL, limit=2))
        rest = await service.control.training_steps(replace(ALL, after=2))
        other = await service.control.training_steps(replace(ALL, policy=PolicyId("judge")))
    steps = page.steps
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert tuple(step.metrics["loss"] for step in steps) == LOSSES
    assert [step.version for step in steps] == [1, 2, 3, 4, 5]
    assert [step.total_episodes for step in steps] == [4, 8, 12, 16, 20]
    tokens = [step.total_tokens for step in steps]
    assert tokens == [tokens[0] * number for number in range(1, 6)]
    assert steps[0].metrics["tokens_mean"] * 4 == tokens[0]
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert (first.steps, first.has_more) == (steps[:2], True)
    assert (rest.steps, rest.has_more) == (steps[2:], False)
    assert (other.steps, other.has_more) == ((), False)
    assert await OfflineRun(tmp_path).training_steps(ALL) == page


async def test_a_repeated_report_of_a_step_is_not_recorded_again(tmp_path: Path) -> None:
    async with running(tmp_path, config(max_staleness=9)) as service:
        await train(service, (0.25,))
        assert not await service.trainer().report_step(report(0, {"loss": 99.0}))
        (step,) = (await service.control.training_steps(ALL)).steps
    assert step.metrics["loss"] == 0.25


async def test_numbers_and_totals_go_on_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, config(max_staleness=9)) as service:
        await train(service, LOSSES[:2])
    async with running(tmp_path, config(max_staleness=9)) as service:
        await train(service, LOSSES[2:], first=2)
        steps = (await service.control.training_steps(ALL)).steps
    assert tuple(step.metrics["loss"] for step in steps) == LOSSES
    assert [step.total_episodes for step in steps] == [4, 8, 12, 16, 20]


async def test_steps_that_the_archive_lost_in_a_crash_are_restored(tmp_path: Path) -> None:
    async with running(tmp_path, config(max_staleness=9)) as service:
        await train(service, LOSSES)
        before = await service.control.training_steps(ALL)
    for file in tmp_path.glob("history.sqlite*"):
        file.unlink()
    async with opened(tmp_path, config(max_staleness=9)) as (run, _):
        assert await run.training_steps.page(ALL) == before


async def test_a_step_that_a_crash_took_back_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, config(max_staleness=9)) as service:
        await train(service, LOSSES[:1])
        (step,) = (await service.control.training_steps(ALL)).steps
    async with opened(tmp_path, config(max_staleness=9)) as (run, _):
        archive_step(run, replace(step, step=2))
        assert [row.step for row in (await run.training_steps.page(ALL)).steps] == [1, 2]
        run.training_steps.restore({SOLVER: 1})
        assert (await run.training_steps.page(ALL)).steps == (step,)


async def test_the_journal_holds_only_the_latest_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "MAX_JOURNALED_STEPS", 2)
    async with running(tmp_path, config(max_staleness=9)) as service:
        await train(service, LOSSES)
        assert len((await service.control.training_steps(ALL)).steps) == 5
    async with opened(tmp_path, config(max_staleness=9)) as (_, journal):
        assert journal.rows("select step from training_steps order by step") == [(4,), (5,)]


async def test_a_page_is_small_when_metrics_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived, "PAGE_BYTES", 1)
    async with opened(tmp_path, config()) as (run, _):
        for number in (1, 2):
            archive_step(run, step_row(number))
        page = await run.training_steps.page(ALL)
    assert (page.steps, page.has_more) == ((step_row(1),), True)


def archive_step(run: Run, step: TrainingStep) -> None:
    """Stores a step in the archive alone, as before a crash in which the journal lost it."""
    run.training_steps.store(archived.step_columns(step))


def step_row(number: int) -> TrainingStep:
    return TrainingStep(
        policy=SOLVER, step=number, at=10.0 + number, version=Version(number), total_tokens=40 * number,
        total_episodes=4 * number, reward=0.5, metrics={"loss": 1.0},
    )  # fmt: skip


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"after": -1}, {"after": 2**63}])
def test_a_query_out_of_range_is_refused(wrong: dict[str, int]) -> None:
    with raises_code(InvalidInput, "query.out_of_range"):
        TrainingStepQuery(policy=SOLVER, **wrong)
