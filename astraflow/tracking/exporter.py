"""Exporter: sends each training step of a run to a tracker, and continues after a restart."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Report
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepPage, TrainingStepQuery
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import TRANSIENT
from astraflow.tracking.base import Tracker, tracked

log = get_logger()


class StepSource(Protocol):
    """Run that has training steps: active, or ended."""

    async def training_steps(self, query: TrainingStepQuery) -> TrainingStepPage:
        """Returns the training steps of a policy, oldest first."""


class Exporter:
    """Sends steps to one tracker and records the last exported step of each policy in `file`.

    The record is written after the tracker has the step, so a crash in between repeats one step and loses none.
    """

    def __init__(self, tracker: Tracker, file: Path) -> None:
        """Raises: CorruptData for an unreadable record."""
        self._tracker = tracker
        self._file = file
        self._exported = _read_progress(file)
        self.steps = 0
        """Steps exported by this process."""

    async def follow(self, reports: AsyncIterator[Report], source: StepSource) -> None:
        """Exports the steps of a run whenever a report has more of them, until the run is complete or the reports
        end. While the run is unavailable, the steps wait for the next report."""
        async for report in reports:
            try:
                await self.export(source, {stream.policy: stream.training.steps for stream in report.streams})
            except TRANSIENT as problem:
                log.warning("steps_wait", problem=str(problem))
                continue
            if report.completion is not None and report.completion.ends_run:
                return

    async def export(self, source: StepSource, steps: Mapping[PolicyId, int]) -> None:
        """Exports the steps that were not exported yet, oldest first for each policy. steps: of each policy;
        more than there are exports all. Raises: the errors of the source."""
        for policy, count in steps.items():
            while self._exported.get(policy, 0) < count:
                page = await source.training_steps(
                    TrainingStepQuery(policy=policy, after=self._exported.get(policy, 0))
                )
                await asyncio.to_thread(self._export_page, page.steps)
                if not page.has_more:
                    break

    def _export_page(self, steps: Iterable[TrainingStep]) -> None:
        for step in steps:
            self._tracker.log(tracked(step))
            self._exported[step.policy] = step.step
            self.steps += 1
            self._record_progress()

    def _record_progress(self) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps(self._exported))
        temporary.replace(self._file)


def _read_progress(file: Path) -> dict[PolicyId, int]:
    if not file.exists():
        return {}
    try:
        steps = json.loads(file.read_text())
        return {PolicyId(policy): int(step) for policy, step in steps.items()}
    except (OSError, ValueError, AttributeError, TypeError) as problem:
        raise CorruptData(
            f"cannot continue the export recorded in {str(file)!r}: {problem}; remove the file to export the run again "
            "from its beginning",
            code="tracking.unreadable_progress",
        ) from problem
