"""State in rows: what a run stores for each prompt outlives it, and a commit writes only the changed rows."""

import asyncio
from pathlib import Path

import pytest

from astraflow.contract.errors import StorageFull
from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.config import DataflowConfig
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import Run
from astraflow.dataflow.storage import journal as journal_module
from astraflow.dataflow.storage.journal import Journal
from tests import make
from tests.dataflow.running import committing, config, facts, opened

pytestmark = pytest.mark.anyio


def selecting(kind: str) -> DataflowConfig:
    plain = config()
    flows = {name: flow.model_copy(update={"selector": {"kind": kind}}) for name, flow in plain.flows.items()}
    return plain.model_copy(update={"flows": flows})


async def push_equal_rewards(run: Run) -> int:
    """Leases all tasks and pushes them as solved; returns the number of groups."""
    nodes = NodeOperations(run)
    node = nodes.membership.join(facts()).id
    lease = await nodes.leasing.lease(node, 100, versions={PolicyId("solver"): Version(0)}, wait_s=0)
    await nodes.results.push(node, [solved(task, node) for task in lease.tasks])
    return len({task.group for task in lease.tasks})


def solved(task: Task, node: NodeId) -> Episode:
    return Episode(task=task.id, node=node, trajectories=(make.trajectory(reward=1.0),))


async def test_rows_of_a_selector_are_restored_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, selecting("greso")) as (run, journal):
        groups = await push_equal_rewards(run)
        assert len(journal.saved_rows("flow train-solver greso")) == groups
    async with opened(tmp_path, selecting("greso")) as (run, _):
        report = build_report(run, name="test", sequence=1, now=0, wall=0, uptime_s=0)
        assert report.flows[0].plugins["greso.streaks"] == groups


async def test_rows_of_a_replaced_selector_are_removed(tmp_path: Path) -> None:
    async with opened(tmp_path, selecting("greso")) as (run, _):
        await push_equal_rewards(run)
    async with opened(tmp_path, selecting("uniform")) as (run, journal):
        await journal.wait_durable()
        assert journal.rows("select * from rows") == []
        assert run.flows[next(iter(run.flows))].metrics()["uniform.draws"] == 0


async def test_a_commit_writes_changed_rows_and_deletes_removed_ones(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    changes: list[dict[int, int | None]] = [{1: 10, 2: 20}, {}, {2: None, 3: 30}]
    journal.register_rows("owner", lambda: dict(changes.pop(0)) if changes else {})
    async with committing(journal):
        for _ in range(3):
            journal.touch()
            await journal.wait_durable()
        assert journal.saved_rows("owner") == {1: 10, 3: 30}


async def test_rows_of_a_failed_commit_are_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RETRY_S", 0.01)
    journal = Journal(tmp_path / "journal.sqlite")
    changes: list[dict[int, str | None]] = [{1: "x" * 100_000, 2: "old"}, {2: "new"}]
    journal.register_rows("owner", lambda: dict(changes.pop(0)) if changes else {})
    (pages,) = journal.rows("pragma page_count")[0]
    journal.rows(f"pragma max_page_count = {pages}")
    async with committing(journal):
        journal.touch()
        with pytest.raises(StorageFull):
            await journal.wait_durable()
        journal.rows("pragma max_page_count = 1000000")
        while journal.failure is not None:  # noqa: ASYNC110 (the journal notifies waiters for durability only)
            await asyncio.sleep(0.01)
        await journal.wait_durable()
        assert journal.saved_rows("owner") == {1: "x" * 100_000, 2: "new"}
