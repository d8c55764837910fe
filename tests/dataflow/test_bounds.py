"""Limits of a run: memory for results, and no files on disk where the configuration says so."""

import asyncio
from pathlib import Path

import pytest

from astraflow.contract.ids import Version
from tests.dataflow.running import config, facts, running
from tests.dataflow.test_service import assert_balanced, episode, produce, step_of

pytestmark = pytest.mark.anyio


@pytest.mark.long
async def test_the_memory_limit_stops_issuing_but_accepts_issued_groups(tmp_path: Path) -> None:
    async with running(tmp_path, config(max_staleness=8, memory_bytes=1)) as service:
        node = (await service.nodes.join(facts())).node
        lease = await service.nodes.lease(node, 8, wait_s=2)
        assert len(lease.tasks) == 8
        await service.nodes.push(node, [episode(task) for task in lease.tasks[:1]])
        assert not (await service.nodes.lease(node, 8, wait_s=0.1)).tasks
        assert set(await service.nodes.push(node, [episode(task) for task in lease.tasks[1:]])) == {"accepted"}
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        for step in range(2):
            assert (await service.control.report()).held_bytes > 0
            batch = await trainer.pull_batch(version=Version(step), wait_s=2)
            assert batch is not None
            await trainer.report_step(step_of(batch))
        assert (await service.control.report()).held_bytes == 0
        assert len((await service.nodes.lease(node, 8, wait_s=2)).tasks) == 8


async def test_a_memory_limit_below_one_batch_is_reported_while_the_trainer_waits(tmp_path: Path) -> None:
    async with running(tmp_path, config(batch_groups=2, memory_bytes=1)) as service:
        node = (await service.nodes.join(facts())).node
        (*tasks,) = (await service.nodes.lease(node, 2, wait_s=2)).tasks
        await service.nodes.push(node, [episode(task) for task in tasks])
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        assert not (await service.control.report()).problems
        pulling = asyncio.create_task(trainer.pull_batch(version=Version(0), wait_s=1.0))
        problems = await anext(report.problems async for report in service.control.watch_report() if report.problems)
        assert problems[0].cause == "memory_full"
        assert await pulling is None


async def test_a_run_without_durability_reports_it_and_writes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, config(durability="none")) as service:
        await produce(service, 2)
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        batch = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        assert await trainer.report_step(step_of(batch))
        report = await service.control.report()
        assert not report.is_durable
        assert_balanced(report)
    assert not (tmp_path / "journal.sqlite").exists()
    assert not list(tmp_path.rglob("*.segment"))
    async with running(tmp_path, config(durability="none")) as service:
        assert (await service.control.report()).streams[0].groups.trained == 0


async def test_a_durable_run_removes_unneeded_payloads(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        assert (await service.control.report()).is_durable
        await produce(service, 2)
        assert list(tmp_path.rglob("*.segment"))
        trainer = service.trainer()
        await trainer.attach(version=Version(0), backend="local", is_simulated=False)
        batch = await trainer.pull_batch(version=Version(0), wait_s=2)
        assert batch is not None
        await trainer.report_step(step_of(batch))
    async with running(tmp_path) as service:
        assert not list(tmp_path.rglob("*.segment")), "unreferenced files are removed at the next start"
        assert_balanced(await service.control.report())
