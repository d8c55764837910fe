"""Read-only queries on the folder of a run, with the interface of its dataflow, and its recorded reports."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError

from astraflow.archive.connection import ARCHIVE_PATH, open_recorded, run_query
from astraflow.archive.events import find_events
from astraflow.archive.reports import find_last_report, find_rounds, read_reports
from astraflow.archive.samples import find_groups, find_rewards, find_sample_index, find_trajectories
from astraflow.archive.training_steps import find_steps
from astraflow.contract.errors import CorruptData, InvalidInput, Unavailable
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.queries import (
    EventPage,
    EventQuery,
    GroupPage,
    GroupQuery,
    RewardHistogram,
    RewardQuery,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import Report
from astraflow.contract.reports.training_steps import TrainingStepPage, TrainingStepQuery
from astraflow.runtime.folders.run_folders import changed_at
from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()
SECOND_S, MINUTE_S = 1, 60


class OfflineRun:
    """The archive in a run's folder.

    Each query opens the file again, so that the run may continue, end or be removed in between. After a crash, all
    commits up to the last are readable. Every method raises Unavailable without an archive, CorruptData for an
    unreadable file, and DeadlineExceeded.
    """

    def __init__(self, folder: Path) -> None:
        """folder: of the run."""
        self._file = folder / ARCHIVE_PATH

    @property
    def exists(self) -> bool:
        """Returns whether the folder has an archive."""
        return self._file.is_file()

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Returns sampled trajectories; for the next page, `before` is the ordinal of the last one seen."""
        return await self._query(lambda database: find_trajectories(database, query))

    async def groups(self, query: GroupQuery) -> GroupPage:
        """Returns the groups of sampled trajectories with their statistics."""
        return await self._query(lambda database: find_groups(database, query))

    async def sample_index(self, query: SampleIndexQuery) -> SampleIndex:
        """Returns the steps and the prompts with sampled groups."""
        return await self._query(lambda database: find_sample_index(database, query))

    async def rewards(self, query: RewardQuery) -> RewardHistogram:
        """Returns the reward histogram of sampled trajectories."""
        return await self._query(lambda database: find_rewards(database, query))

    async def evaluations(self, *, before: int | None = None, limit: int = 20) -> tuple[EvaluationReport, ...]:
        """Returns finished evaluation rounds, newest first."""
        return tuple(await self._query(lambda database: find_rounds(database, before=before, limit=limit)))

    async def events(self, query: EventQuery) -> EventPage:
        return await self._query(lambda database: find_events(database, query))

    async def training_steps(self, query: TrainingStepQuery) -> TrainingStepPage:
        """Returns the training steps of a policy, oldest first."""
        return await self._query(lambda database: find_steps(database, query))

    async def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._run, query)

    def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        if not self.exists:
            raise Unavailable(
                f"cannot read the archive {str(self._file)!r}: there is no such file; check the folder of the run",
                code="archive.unavailable",
            )
        try:
            with closing(open_recorded(self._file)) as database:
                return run_query(database, query)
        except (sqlite3.Error, DecodeError, InvalidInput, TypeError, ValueError) as problem:
            raise CorruptData(
                f"cannot read the archive {str(self._file)!r}: {problem}; restore it from a backup if it is "
                "damaged, or use the release that wrote it",
                code="archive.unreadable",
            ) from problem


def last_report(folder: Path) -> Report | None:
    """Returns the last readable report in the archive of a run; None without one."""
    file = folder / ARCHIVE_PATH
    if not file.is_file():
        return None
    try:
        with closing(open_recorded(file)) as database:
            return find_last_report(database)
    except sqlite3.Error as problem:
        log.warning("archive_unreadable", path=str(file), problem=str(problem))
        return None


def archive_signature(folder: Path) -> tuple[tuple[int, int] | None, ...]:
    """Returns a value that changes when the archive of a run changes; of None without an archive."""
    file = folder / ARCHIVE_PATH
    return changed_at(file), changed_at(file.with_name(f"{file.name}-wal"))


def offline_reports(folder: Path, *, on_skipped: Callable[[CorruptData], None]) -> Iterator[Report]:
    """Yields the one-minute points before the oldest one-second report, then the one-second reports; by sequence.

    on_skipped: called for each unreadable row. Raises: InvalidInput for a folder without reports, CorruptData for an
    unreadable file.
    """
    file = folder / ARCHIVE_PATH
    try:
        seconds = read_reports(file, resolution_s=SECOND_S, on_skipped=on_skipped)
        first = next(seconds, None)
        for point in read_reports(file, resolution_s=MINUTE_S, on_skipped=on_skipped):
            if first is None or point.sequence < first.sequence:
                yield point
        yield from chain([first] if first else [], seconds)
    except sqlite3.Error as problem:
        raise CorruptData(
            f"cannot read the reports in {str(file)!r}: {problem}; restore the file from a copy",
            code="archive.unreadable",
        ) from problem
