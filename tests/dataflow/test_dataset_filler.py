"""A flow that trains on the answers of its dataset needs no node; its counts balance, also after a restart."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.report import Report
from astraflow.dataflow.config import DataflowConfig, FlowConfig
from tests.dataflow.running import Service, config, facts, running
from tests.errors import raises_code

SOLVER = PolicyId("solver")


def answered(*, workflow: dict[str, Any] | None = None, **options: Any) -> DataflowConfig:
    """Returns a run with one flow of the dataset's answers, in batches of two groups."""
    flow = FlowConfig(
        dataset={"kind": "letters"}, workflow={"kind": "dataset_answers", **(workflow or {})}, group_size=1
    )
    base = config(**options)
    return base.model_copy(update={"flows": {"train": flow}})


async def train(service: Service, *, steps: int, version: int = 0) -> list[Batch]:
    """Attaches a trainer at a version, and trains."""
    trainer = service.trainer()
    await trainer.attach(version=Version(version), backend="test", is_simulated=True)
    batches = []
    for step in range(version, version + steps):
        batch = await trainer.pull_batch(version=Version(step), wait_s=5.0)
        assert batch is not None
        batches.append(batch)
        report = StepReport(
            batch=batch.id, policy=SOLVER, version=Version(step + 1), wait_s=0.0, compute_s=1.0, publish_s=0.0
        )
        await trainer.report_step(report)
    return batches


async def report_of(service: Service) -> Report:
    return await service.control.report()


def assert_balanced(report: Report) -> None:
    (flow,), (stream,) = report.flows, report.streams
    assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())
    assert sum(stream.groups.dropped.values()) == 0
    assert stream.groups.admitted == flow.admitted


@pytest.mark.long
@pytest.mark.anyio
async def test_a_trainer_gets_correct_answers_without_any_node(tmp_path: Path) -> None:
    async with running(tmp_path, answered()) as service:
        batches = await train(service, steps=5)
        report = await report_of(service)

    rows = [row for batch in batches for row in batch.rows]
    assert len({row.task for row in rows}) == len(rows) == 10
    assert {row.trajectory.reward for row in rows} == {1.0}
    assert all(row.trajectory.answer and row.trajectory.model_tokens > 1 for row in rows)
    assert not report.nodes
    assert report.problems == ()
    assert_balanced(report)


@pytest.mark.anyio
@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_the_gate_bounds_what_is_prepared(tmp_path: Path, max_staleness: int) -> None:
    async with running(tmp_path, answered(max_staleness=max_staleness)) as service:
        await train(service, steps=3)
        report = await report_of(service)

    (flow,) = report.flows
    assert flow.issued <= (3 + max_staleness + 1) * 2
    assert_balanced(report)


@pytest.mark.long
@pytest.mark.anyio
async def test_a_restart_trains_every_group_once(tmp_path: Path) -> None:
    async with running(tmp_path, answered()) as service:
        before = await train(service, steps=2)
    async with running(tmp_path, answered()) as service:
        after = await train(service, steps=2, version=2)
        report = await report_of(service)

    groups = [row.group for batch in (*before, *after) for row in batch.rows]
    assert len(set(groups)) == len(groups) == 8
    assert_balanced(report)


@pytest.mark.anyio
async def test_no_task_of_such_a_flow_is_leased_to_a_node(tmp_path: Path) -> None:
    async with running(tmp_path, answered()) as service:
        joined = await service.nodes.join(facts())
        lease = await service.nodes.lease(joined.node, 4, versions={SOLVER: Version(0)}, wait_s=0.3)

    assert lease.tasks == ()


@pytest.mark.anyio
async def test_a_pair_of_answers_is_one_group(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"question": "1 + 1", "answer": "2", "worse": "3"}\n' * 4)
    run = answered(workflow={"rejected_field": "worse"})
    flow = run.flows["train"].model_copy(update={"dataset": {"kind": "jsonl", "path": str(file)}, "group_size": 2})

    async with running(tmp_path, run.model_copy(update={"flows": {"train": flow}})) as service:
        (batch,) = await train(service, steps=1)

    rewards = {row.trajectory.answer: row.trajectory.reward for row in batch.rows}
    assert rewards == {"2": 1.0, "3": 0.0}
    assert len({row.group for row in batch.rows}) == 2


@pytest.mark.anyio
async def test_a_dataset_without_answers_is_refused_at_start(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "workflow.no_answer"):
        async with running(tmp_path, answered(workflow={"rejected_field": "worse"})):
            pass


@pytest.mark.anyio
async def test_a_prompt_without_an_answer_is_a_failed_group_and_the_others_are_trained(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "a", "answer": "b"}\n{"question": "c", "answer": ""}\n')
    run = answered()
    flow = run.flows["train"].model_copy(update={"dataset": {"kind": "jsonl", "path": str(file)}})

    async with running(tmp_path, run.model_copy(update={"flows": {"train": flow}})) as service:
        batches = await train(service, steps=3)
        (flow_report,) = (await report_of(service)).flows

    assert {row.trajectory.answer for batch in batches for row in batch.rows} == {"b"}
    assert flow_report.dropped["failed"] > 0
