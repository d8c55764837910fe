"""A batch that ended its trainer repeatedly is set aside, over real gRPC: counts, records, event, problem and rows."""

import json
from pathlib import Path

import pytest

from astraflow.archive.set_aside import FOLDER, SetAsideFiles, export
from astraflow.contract.batches import Batch, StepEnd, StepFailure
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.records import render
from astraflow.contract.reports.report import Report
from astraflow.dataflow.serving.failed_steps import MAX_IN_A_ROW
from astraflow.dataflow.serving.stream import SHOWN_STEPS
from tests.dataflow.running import Service, config, facts, running
from tests.dataflow.test_service import episode, produce, step_of
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

ERROR = "IndexError: index out of range in self (functional.py:12)"


def failed(batch: Batch, attempt: str, end: StepEnd = StepEnd.ERROR, *, step_s: float = 1.0) -> StepFailure:
    error = ERROR if end is StepEnd.ERROR else ""
    return StepFailure(policy=PolicyId("solver"), batch=batch.id, attempt=attempt, end=end, error=error, step_s=step_s)


async def pulled(service: Service, version: int, *, unacknowledged: int = 0) -> Batch:
    batch = await service.trainer().pull_batch(version=Version(version), wait_s=2, unacknowledged=unacknowledged)
    assert batch is not None
    return batch


async def more(service: Service, groups: int) -> None:
    """Pushes results for more groups, from one node after another."""
    node = (await service.nodes.join(facts("producer"))).node
    lease = await service.nodes.lease(node, 2 * groups, wait_s=2)
    assert len(lease.tasks) == 2 * groups
    await service.nodes.push(node, [episode(task) for task in lease.tasks])


def assert_balanced(report: Report) -> None:
    (stream,) = report.streams
    spread = stream.groups.accounted
    assert stream.groups.admitted == spread


async def test_a_batch_with_two_errors_is_set_aside_and_the_next_batch_gets_its_number(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 4)
        trainer = service.trainer()
        first = await pulled(service, 0)
        assert not await trainer.report_failure(failed(first, "1"))
        assert not await trainer.report_failure(failed(first, "1"))  # a repetition
        assert (await pulled(service, 0)).rows[0].task == first.rows[0].task
        assert await trainer.report_failure(failed(first, "2"))
        assert not await trainer.report_failure(failed(first, "2"))
        second = await pulled(service, 0)
        assert (second.id, second.is_redelivered) == (first.id, False)
        assert not {row.group for row in first.rows} & {row.group for row in second.rows}
        report = await service.control.report()
        assert report.streams[0].groups.dropped["set_aside"] == 2
        assert_balanced(report)
        (problem,) = (problem for problem in report.problems if problem.cause == "batch_set_aside")
        (event,) = (event for event in report.events if event.kind.value == "batch_set_aside")
        assert problem.values == event.values
        assert (event.values["batch"], event.values["error"]) == (first.id, ERROR)
        assert "4 of producer" in str(event.values["nodes"])
        assert event.values["stored_as"]
        assert "step_failed" in {event.kind.value for event in report.events}
        await more(service, 2)  # the groups that were set aside are replaced
        assert await trainer.report_step(step_of(second))
        assert (await pulled(service, 1)).id == "solver:1"


async def test_the_count_of_failed_steps_and_what_is_set_aside_survive_restarts(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 4)
        first = await pulled(service, 0)
        await service.trainer().report_failure(failed(first, "1"))
    async with running(tmp_path) as service:
        again = await pulled(service, 0)
        assert again.is_redelivered
        assert await service.trainer().report_failure(failed(again, "2"))
    async with running(tmp_path) as service:
        assert not await service.trainer().report_failure(failed(first, "2"))
        second = await pulled(service, 0)
        assert not {row.group for row in first.rows} & {row.group for row in second.rows}
        report = await service.control.report()
        assert report.streams[0].groups.dropped["set_aside"] == 2
        assert [problem.values["error"] for problem in report.problems] == [ERROR]
        assert_balanced(report)


async def test_kills_stops_and_new_connections_set_no_batch_aside(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 4)
        trainer = service.trainer()
        batch = await pulled(service, 0)
        for number in range(5):
            await trainer.attach(version=Version(0), backend="local", is_simulated=False)
            assert not await trainer.report_failure(failed(batch, f"s{number}", StepEnd.STOPPED, step_s=900))
            assert (await pulled(service, 0)).id == batch.id
        for number in range(2):
            assert not await trainer.report_failure(failed(batch, f"k{number}", StepEnd.UNEXPLAINED))
        assert "set_aside" not in (await service.control.report()).streams[0].groups.dropped
        assert await trainer.report_step(step_of(batch))
        following = await pulled(service, 1)
        assert not await trainer.report_failure(failed(following, "k2", StepEnd.UNEXPLAINED))


async def test_a_step_far_longer_than_usual_counts_although_the_trainer_was_stopped(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 4)
        trainer = service.trainer()
        await trainer.report_step(step_of(await pulled(service, 0)))
        batch = await pulled(service, 1)
        assert not await trainer.report_failure(failed(batch, "1", StepEnd.STOPPED, step_s=119))
        assert not await trainer.report_failure(failed(batch, "2", StepEnd.STOPPED, step_s=121))
        assert await trainer.report_failure(failed(batch, "3", StepEnd.UNEXPLAINED, step_s=900))


async def test_the_batch_after_one_set_aside_is_assembled_anew(tmp_path: Path) -> None:
    """A trainer that had pulled the second batch before it restarted gets other batches under both numbers."""
    async with running(tmp_path, config(max_staleness=2)) as service:
        await produce(service, 6)
        trainer = service.trainer()
        first = await pulled(service, 0)
        second = await pulled(service, 1, unacknowledged=1)
        await trainer.report_failure(failed(second, "0"))
        for attempt in "12":
            await trainer.report_failure(failed(first, attempt))
        assert_balanced(await service.control.report())
    async with running(tmp_path, config(max_staleness=2)) as service:
        trainer = service.trainer()
        again = await pulled(service, 0)
        following = await pulled(service, 1, unacknowledged=1)
        assert [again.id, following.id] == ["solver:0", "solver:1"]
        groups = [{row.group for row in batch.rows} for batch in (first, again, following)]
        assert len(set.union(*groups)) == 6
        assert {row.group for row in second.rows} < set.union(*groups[1:])
        await trainer.report_step(step_of(again))
        assert not await trainer.report_failure(failed(following, "3")), "the other batch had a failure, not this one"
        await trainer.report_step(step_of(following))
        report = await service.control.report()
        assert (report.streams[0].training.steps, report.streams[0].groups.trained) == (2, 4)
        assert_balanced(report)


async def test_the_second_of_two_open_batches_is_set_aside_alone(tmp_path: Path) -> None:
    async with running(tmp_path, config(max_staleness=2)) as service:
        await produce(service, 6)
        trainer = service.trainer()
        first = await pulled(service, 0)
        second = await pulled(service, 1, unacknowledged=1)
        for attempt in "12":
            await trainer.report_failure(failed(second, attempt))
        third = await pulled(service, 1, unacknowledged=1)
        assert third.id == second.id
        assert not {row.group for row in third.rows} & {row.group for row in (*first.rows, *second.rows)}
        assert await trainer.report_step(step_of(first))
        assert await trainer.report_step(step_of(third))
        assert_balanced(await service.control.report())


async def test_after_many_batches_in_a_row_the_trainer_is_refused_with_the_error(tmp_path: Path) -> None:
    async with running(tmp_path, config(max_staleness=20)) as service:
        await produce(service, 2 * MAX_IN_A_ROW + 2)
        trainer = service.trainer()
        for number in range(MAX_IN_A_ROW):
            batch = await pulled(service, 0)
            await trainer.report_failure(failed(batch, f"{number}a"))
            assert await trainer.report_failure(failed(batch, f"{number}b"))
        batch = await pulled(service, 0)
        await trainer.report_failure(failed(batch, "a"))
        with raises_code(InvalidInput, "trainer.steps_keep_failing") as refusal:
            await trainer.report_failure(failed(batch, "b"))
        assert ERROR in str(refusal.value)
        assert (await pulled(service, 0)).id == batch.id
        assert await trainer.report_step(step_of(batch))  # the cause was corrected
        assert_balanced(await service.control.report())


async def test_a_failure_of_a_batch_that_is_not_open_counts_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 2)
        trainer = service.trainer()
        batch = await pulled(service, 0)
        await trainer.report_step(step_of(batch))
        for attempt in "123":
            assert not await trainer.report_failure(failed(batch, attempt))
        assert "set_aside" not in (await service.control.report()).streams[0].groups.dropped


async def test_the_problem_is_shown_for_some_steps_and_the_replaced_groups_are_trained(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await produce(service, 4)
        trainer = service.trainer()
        batch = await pulled(service, 0)
        for attempt in "12":
            await trainer.report_failure(failed(batch, attempt))
        shown = []
        node = (await service.nodes.join(facts("producer"))).node
        for step in range(SHOWN_STEPS):
            tasks = (await service.nodes.lease(node, 4, wait_s=0)).tasks
            await service.nodes.push(node, [episode(task, version=step) for task in tasks])
            await trainer.report_step(step_of(await pulled(service, step)))
            shown.append(bool((await service.control.report()).problems))
        assert shown == [True] * (SHOWN_STEPS - 1) + [False]


async def test_a_damaged_checkpoint_of_a_trainer_is_an_event_and_a_problem_once(tmp_path: Path) -> None:
    damage = "checkpoint 3 of the trainer is damaged"
    async with running(tmp_path) as service:
        for _ in range(2):  # it attaches again after an outage
            await service.trainer().attach(version=Version(2), backend="local", is_simulated=True, damage=damage)
        report = await service.control.report()
        assert damage in [render(problem) for problem in report.problems]
        assert [render(event) for event in report.events if event.kind.value == "checkpoint_set_aside"] == [damage]


async def test_the_rows_are_stored_for_a_bug_report(tmp_path: Path) -> None:
    async with running(tmp_path / "run") as service:
        await produce(service, 2)
        batch = await pulled(service, 0)
        for attempt in "12":
            await service.trainer().report_failure(failed(batch, attempt))
    (file,) = SetAsideFiles(tmp_path / "run" / FOLDER).files()
    assert file.summary == f"batch solver:0, 2 groups, 4 rows (4 of producer.1): {ERROR}"
    head, *rows = [json.loads(line) for line in export(file, tmp_path / "out").read_text().splitlines()]
    assert (head["batch"], head["errors"]) == (batch.id, [ERROR, ERROR])
    assert [row["task"] for row in rows] == [row.task for row in batch.rows]
    assert [row["tokens"] for row in rows] == [row.trajectory.tokens.tolist() for row in batch.rows]
    assert [row["logprobs"] for row in rows] == [row.trajectory.logprobs.tolist() for row in batch.rows]
