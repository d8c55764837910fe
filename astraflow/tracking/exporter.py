"""Exporter: sends each new step of a run's reports to a tracker, and continues after a restart."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Report
from astraflow.runtime.logs import get_logger
from astraflow.tracking.base import Tracker, new_steps

log = get_logger()


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

    async def follow(self, reports: AsyncIterator[Report]) -> None:
        """Exports the steps of all reports, oldest first, until the run is complete or the reports end."""
        async for report in reports:
            await asyncio.to_thread(self.export, [report])
            if report.completion is not None and report.completion.ends_run:
                return

    def export(self, reports: Iterable[Report]) -> None:
        """Exports the steps of the reports, oldest first. Blocks."""
        for report in reports:
            for step in new_steps(report, self._exported):
                self._tracker.log(step)
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
