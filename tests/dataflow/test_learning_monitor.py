"""Faults of learning: found from the archive of a running service, recorded once, and kept over a restart."""

from pathlib import Path

import pytest

from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.records import Record
from astraflow.contract.reports.queries import EventQuery
from astraflow.dataflow.reporting import learning_monitor
from tests.dataflow.running import Service, config, running
from tests.dataflow.test_training_steps import train

pytestmark = pytest.mark.anyio

KINDS = (RecordKind.LEARNING_FAULT, RecordKind.LEARNING_FAULT_OVER)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_monitor, "EVERY_S", 0.05)
    monkeypatch.setattr(learning_monitor, "MOST_SHARE", 1.0)


async def faults_of(service: Service, *causes: str, skipped: int = 0) -> tuple[Record, ...]:
    """Waits for exactly these faults in the report. skipped: updates of the first one."""
    async for report in service.control.watch_report():
        faults = report.learning_faults
        if [fault.cause for fault in faults] == [*causes] and (not skipped or faults[0].values["skipped"] == skipped):
            return faults
    raise AssertionError("the service ended")


async def events_of(service: Service) -> list[tuple[RecordKind, str, object]]:
    page = await service.control.events(EventQuery(kinds=KINDS))
    return [(event.kind, event.cause, event.values["step"]) for event in page.events]


async def test_a_fault_is_reported_and_recorded_once_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipping = {"skipped": 1.0}
    async with running(tmp_path, config(max_staleness=99)) as service:
        await train(service, (0.5,) * 3, metrics=skipping)
        (fault,) = await faults_of(service, "updates_skipped")
        assert (fault.subject, fault.severity) == ("solver", Severity.CRITICAL)
        began = fault.values["step"]
    async with running(tmp_path, config(max_staleness=99)) as service:
        await train(service, (0.5,), first=3, metrics=skipping)
        (fault,) = await faults_of(service, "updates_skipped", skipped=4)
        assert fault.values["step"] == began
        assert await events_of(service) == [(RecordKind.LEARNING_FAULT, "updates_skipped", began)]
        monkeypatch.setattr("astraflow.learning.steps.SKIP_STEPS", 1)
        monkeypatch.setattr(learning_monitor, "ABSENT_TIMES", 1)
        await train(service, (0.5,), first=4)
        await faults_of(service)
        assert (await events_of(service))[0] == (RecordKind.LEARNING_FAULT_OVER, "updates_skipped", began)


async def test_a_failing_check_ends_neither_the_examinations_nor_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> tuple[Record, ...]:
        raise RuntimeError("a check failed")

    with monkeypatch.context() as broken:
        broken.setattr(learning_monitor, "examine_archive", fails)
        async with running(tmp_path, config(max_staleness=99)) as service:
            await train(service, (0.5,) * 3, metrics={"skipped": 1.0})
            await faults_of(service)
            broken.undo()
            await faults_of(service, "updates_skipped")
