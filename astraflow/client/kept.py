"""What a run left in its folder, asked as its dataflow would be: no service is needed, and nothing is written."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError

from astraflow.archive.events import find_events
from astraflow.archive.opening import PLACE, answered, reopened
from astraflow.archive.rounds import find_rounds
from astraflow.archive.samples import find_rewards, find_trajectories
from astraflow.contract.errors import CorruptData, InvalidInput, Unavailable
from astraflow.contract.evaluations import EvaluationReport
from astraflow.contract.lookups import (
    EventPage,
    EventQuery,
    RewardQuery,
    RewardSpread,
    TrajectoryPage,
    TrajectoryQuery,
)

T = TypeVar("T")


class KeptRun:
    """The archive in a run's folder.

    Each question opens the file anew, so that a run may go on, end or be removed between two of them. What a crash cut
    off is as SQLite finds it: whole commits, up to the last. Every method raises Unavailable where nothing was kept,
    CorruptData for a file that cannot be read, and DeadlineExceeded.
    """

    def __init__(self, folder: Path) -> None:
        """folder: of the run."""
        self._file = folder / PLACE

    @property
    def exists(self) -> bool:
        """Whether anything was kept."""
        return self._file.is_file()

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Sampled trajectories; for the next page, `before` is the ordinal of the last one seen."""
        return await self._asked(lambda database: find_trajectories(database, query))

    async def rewards(self, query: RewardQuery) -> RewardSpread:
        """How the rewards of sampled trajectories are spread."""
        return await self._asked(lambda database: find_rewards(database, query))

    async def evaluations(self, *, before: int | None = None, limit: int = 20) -> tuple[EvaluationReport, ...]:
        """Rounds that ended, newest first."""
        return tuple(await self._asked(lambda database: find_rounds(database, before=before, limit=limit)))

    async def events(self, query: EventQuery) -> EventPage:
        """Events of the whole run."""
        return await self._asked(lambda database: find_events(database, query))

    async def _asked(self, question: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._answer, question)

    def _answer(self, question: Callable[[sqlite3.Connection], T]) -> T:
        if not self.exists:
            raise Unavailable(f"there is no {self._file}: the run kept nothing there to be looked at, or it was moved")
        try:
            with closing(reopened(self._file)) as database:
                return answered(database, question)
        except (sqlite3.Error, DecodeError, InvalidInput, TypeError, ValueError) as problem:
            raise CorruptData(f"{self._file} holds something that this release cannot read: {problem}") from problem
