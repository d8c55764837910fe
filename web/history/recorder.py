"""Writes what was seen of the run to the database, in batches, beside the feed and never in its way."""

import asyncio
from collections import deque
from collections.abc import Mapping

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from astraflow.contract.reports import Report
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web import queries
from web.db import Database
from web.feed.report_json import recorded_json
from web.history import writing
from web.history.checking import MAX_TEXT
from web.history.points import Point
from web.history.samples import NodeBuckets, Sample, Shares, point_samples
from web.history.writing import Names

log = get_logger()

FLUSH_S = 2.0
MOST_WAITING = 200_000
"""Samples that wait at most while the database cannot be written; the oldest give way."""

PRUNE_EVERY = 150
"""Flushes between two prunings."""


class Recorder:
    """Holds samples until the next flush. While the database cannot be written, they wait."""

    def __init__(self, database: Database, *, dataflow: str, recipe: str, clock: Clock, folder: str = "") -> None:
        """folder: the run's directory; empty when it is not known."""
        self._database = database
        self._dataflow = dataflow
        self._recipe = recipe
        self._folder = folder
        self._clock = clock
        self._waiting: deque[Sample] = deque(maxlen=MOST_WAITING)
        self._nodes = NodeBuckets()
        self._report: Report | None = None
        self._has_report = asyncio.Event()
        self._run_id: int | None = None
        self._names: Names = {}
        self._flushes = 0
        self.skipped = 0
        """Samples that were given up because they could not be written. Count."""
        self._flushing = asyncio.Lock()

    @property
    def run_id(self) -> int | None:
        """Record of the run that is live; None until the first flush."""
        return self._run_id

    @property
    def shares(self) -> Mapping[str, Shares]:
        """How nodes spent their latest ten seconds, by name."""
        return self._nodes.shares

    async def recorded_until(self, run: str) -> int:
        """Sequence up to which the run of that name is recorded; 0 for a new one."""
        return await self._database.look(lambda session: queries.recorded_until(session, run))

    def add(self, report: Report, point: Point | None) -> None:
        """Take a report, in the order of their sequence, and its point when it is a new one."""
        if self._report is not None and (report.run != self._report.run or report.sequence < self._report.sequence):
            self._waiting.clear()
            self._run_id, self._names, self._nodes = None, {}, NodeBuckets()
        self._report = report
        self._has_report.set()
        if point is not None:
            self._waiting.extend(point_samples(point))
        self._waiting.extend(self._nodes.add(report))

    async def run(self) -> None:
        """Flush at the first report, then every two seconds until cancelled, then once more."""
        await self._has_report.wait()
        try:
            await periodic(self._whole_flush, every_s=FLUSH_S, clock=self._clock)
        finally:
            await asyncio.shield(self._try_flush())

    async def flush(self) -> None:
        """Write what waits. Raises: DBAPIError; what could not be written waits on."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        report, run_id, names = self._report, self._run_id, self._names
        if report is None:
            return
        samples = list(self._waiting)
        written_id, known = await self._database.do(
            lambda session: self._write(session, report, samples, run_id, names)
        )
        if self._report is not None and self._report.run == report.run and self._run_id == run_id:
            self._run_id = written_id
            self._names = known
            for _ in range(self._forgettable(samples)):
                self._waiting.popleft()

    def _forgettable(self, written: list[Sample]) -> int:
        """How many at the head of what waits were written: all, unless some had to give way meanwhile."""
        if not written or not self._waiting:
            return 0
        head = self._waiting[0]
        place = next((place for place, sample in enumerate(written) if sample is head), len(written))
        return len(written) - place

    async def _whole_flush(self) -> None:
        """One that goes on when its waiter is cancelled: the thread that writes does so anyway, and the last flush must
        know what it wrote."""
        await asyncio.shield(self._try_flush())

    async def _try_flush(self) -> None:
        try:
            await self.flush()
        except DBAPIError as problem:
            log.warning("recording_failed", problem=str(problem.orig), waiting=len(self._waiting))
        except Exception as problem:  # what was reported never ends the process
            self.skipped += len(self._waiting)
            self._waiting.clear()
            said = f"{type(problem).__name__}: {problem}"[:MAX_TEXT]
            log.warning("recording_skipped", problem=said, skipped=self.skipped)

    def _write(
        self, session: Session, report: Report, samples: list[Sample], run_id: int | None, names: Names
    ) -> tuple[int, Names]:
        sighting = queries.Sighting(
            name=report.run,
            recipe=self._recipe,
            dataflow=self._dataflow,
            started_at=report.at - report.uptime_s,
            at=report.at,
            sequence=report.sequence,
            report_json=recorded_json(report),
            folder=self._folder,
        )
        seen_id = queries.see_run(session, sighting, record_id=run_id)
        known = names if run_id == seen_id else writing.names_of(session, seen_id)
        fresh = writing.add(session, seen_id, samples, names=known)
        if samples:
            writing.roll(session, seen_id, since=min(sample.at for sample in samples), until=report.at)
        self._flushes += 1
        if self._flushes % PRUNE_EVERY == 0:
            writing.prune(session, seen_id, now=report.at)
            return seen_id, writing.names_of(session, seen_id)
        return seen_id, {**known, **fresh} if fresh else known
