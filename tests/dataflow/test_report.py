"""Problems in the report of a run."""

import asyncio
from pathlib import Path

import pytest

from astraflow.contract.errors import StorageFull
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.records import Record, render
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.reporting.report import build_report
from astraflow.dataflow.run import TRAINER_WAIT_VALID_S
from astraflow.dataflow.storage import journal as journal_module
from tests.dataflow.running import config, facts, opened
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_a_full_disk_is_reported_and_stops_issuing_until_space_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RETRY_S", 0.01)
    async with opened(tmp_path, config()) as (run, journal):
        nodes = NodeOperations(run)

        def problems() -> tuple[Record, ...]:
            return build_report(run, name="test", sequence=1, now=0, wall=0, uptime_s=0).problems

        node = nodes.membership.join(facts()).id
        await journal.wait_durable()
        assert problems() == ()
        (pages,) = journal.rows("pragma page_count")[0]
        journal.rows(f"pragma max_page_count = {pages}")
        journal.put("insert into states values ('filler', ?)", "x" * 100_000)
        with pytest.raises(StorageFull):
            await journal.wait_durable()
        assert problems()[0].cause == "journal"
        assert "free some space" in str(problems()[0].values["error"])
        issued = run.flows[next(iter(run.flows))].issued
        with pytest.raises(StorageFull):
            await nodes.leasing.lease(node, 4, versions={PolicyId("solver"): Version(0)}, wait_s=0)
        assert run.flows[next(iter(run.flows))].issued == issued
        journal.rows("pragma max_page_count = 1000000")
        while journal.failure is not None:  # noqa: ASYNC110 (the journal notifies waiters for durability only)
            await asyncio.sleep(0.01)
        assert problems() == ()
        lease = await nodes.leasing.lease(node, 4, versions={PolicyId("solver"): Version(0)}, wait_s=0)
        assert len(lease.tasks) == 4


async def test_what_a_trainer_waits_for_is_a_problem_until_it_goes_on_or_is_silent(tmp_path: Path) -> None:
    async with opened(tmp_path, config()) as (run, _):
        trainers, clock = TrainerOperations(run), run.clock
        assert isinstance(clock, ManualClock)
        trainers.report_wait(PolicyId("solver"), "the disk is full")
        listed = [run.problems()]
        trainers.report_wait(PolicyId("solver"), "")
        listed.append(run.problems())
        trainers.report_wait(PolicyId("solver"), "the disk is full")
        await clock.pass_time(TRAINER_WAIT_VALID_S + 1)
        listed.append(run.problems())

    assert [len(problems) for problems in listed] == [1, 0, 0]
    assert [render(problem) for problem in listed[0]] == ["the trainer of 'solver' waits: the disk is full"]
