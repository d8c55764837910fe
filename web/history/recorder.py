"""Records reports to the database in batches, without delaying the live updates."""

import asyncio
from collections import deque
from collections.abc import Mapping

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from astraflow.contract.errors import Unavailable
from astraflow.contract.reports.report import Report
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from web.database import run_records
from web.database.db import Database
from web.history import series_writer
from web.history.points import Point
from web.history.report_checker import MAX_TEXT
from web.history.report_json import recorded_json
from web.history.samples import NodeBuckets, Sample, TimeShares, point_samples
from web.history.series_writer import SeriesIds

log = get_logger()

FLUSH_S = 2.0
MAX_WAITING_SAMPLES = 200_000
"""Maximum waiting samples while the database is not writable; the oldest are dropped."""

FLUSHES_PER_PRUNE = 150
"""Flushes between two prunings."""


class Recorder:
    """Collects samples until the next flush; they wait while the database is not writable."""

    def __init__(
        self,
        database: Database,
        *,
        dataflow: str,
        recipe: str,
        clock: Clock,
        folder: str = "",
        run_id: int | None = None,
    ) -> None:
        """folder: directory of the run; empty if unknown. run_id: its record; None for the latest that it continues."""
        self._database = database
        self._dataflow = dataflow
        self._recipe = recipe
        self._folder = folder
        self._clock = clock
        self._waiting: deque[Sample] = deque(maxlen=MAX_WAITING_SAMPLES)
        self._nodes = NodeBuckets()
        self._report: Report | None = None
        self._has_report = asyncio.Event()
        self._run_id = run_id
        self._names: SeriesIds = {}
        self._flushes = 0
        self.skipped = 0
        """Samples dropped because they could not be written. Count."""
        self._flushing = asyncio.Lock()

    @property
    def run_id(self) -> int | None:
        """Record of the live run; None until the first flush."""
        return self._run_id

    @property
    def report(self) -> Report | None:
        """Newest report, of the run in `run_id`; None before the first one."""
        return self._report

    @property
    def shares(self) -> Mapping[str, TimeShares]:
        """Shares of the nodes' latest ten seconds, by name."""
        return self._nodes.shares

    async def recorded_until(self, run: str) -> int:
        """Sequence up to which the run of this name is recorded; 0 for a new one."""
        return await self._database.read(lambda session: run_records.recorded_until(session, run))

    def add(self, report: Report, point: Point | None) -> list[Sample]:
        """Adds a report, in order of sequence, and its point if it is new; returns what will be recorded of it."""
        if self._report is not None and (report.run != self._report.run or report.sequence < self._report.sequence):
            self._waiting.clear()
            self._run_id, self._names = None, {}
            self._nodes = NodeBuckets()
        self._report = report
        self._has_report.set()
        samples = [*(point_samples(point) if point is not None else ()), *self._nodes.add(report)]
        self._waiting.extend(samples)
        return samples

    async def run(self) -> None:
        """Flushes at the first report, then every two seconds until cancelled, then once more."""
        await self._has_report.wait()
        try:
            await periodic(self._whole_flush, every_s=FLUSH_S, clock=self._clock)
        finally:
            await asyncio.shield(self._try_flush())

    async def flush(self) -> None:
        """Writes waiting samples. Raises: DBAPIError, Unavailable; unwritten samples keep waiting."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        report, run_id, names = self._report, self._run_id, self._names
        if report is None:
            return
        samples = list(self._waiting)
        written_id, series = await self._database.write(
            lambda session: self._write(session, report, samples, run_id, names)
        )
        if self._report is not None and self._report.run == report.run and self._run_id == run_id:
            self._run_id = written_id
            self._names = series
            for _ in range(self._written_prefix(samples)):
                self._waiting.popleft()

    def _written_prefix(self, written: list[Sample]) -> int:
        """Number of waiting samples that were written: all, unless the oldest were dropped meanwhile."""
        if not written or not self._waiting:
            return 0
        head = self._waiting[0]
        position = next((position for position, sample in enumerate(written) if sample is head), len(written))
        return len(written) - position

    async def _whole_flush(self) -> None:
        """Flushes completely even if the caller is cancelled: the writing thread continues anyway, and the last flush
        must know what was written."""
        await asyncio.shield(self._try_flush())

    async def _try_flush(self) -> None:
        try:
            await self.flush()
        except (DBAPIError, Unavailable) as problem:
            cause = str(problem.orig if isinstance(problem, DBAPIError) else problem)
            log.warning("recording_failed", problem=cause, waiting=len(self._waiting))
        except Exception as problem:  # the content of a report never ends the process
            self.skipped += len(self._waiting)
            self._waiting.clear()
            cause = f"{type(problem).__name__}: {problem}"[:MAX_TEXT]
            log.warning("recording_skipped", problem=cause, skipped=self.skipped)

    def _write(
        self, session: Session, report: Report, samples: list[Sample], run_id: int | None, names: SeriesIds
    ) -> tuple[int, SeriesIds]:
        seen_run = run_records.SeenRun(
            name=report.run,
            recipe=self._recipe,
            dataflow=self._dataflow,
            started_at=report.at - report.uptime_s,
            at=report.at,
            sequence=report.sequence,
            report_json=recorded_json(report),
            folder=self._folder,
        )
        record_id = run_records.upsert_run_record(session, seen_run, record_id=run_id)
        series = names if run_id == record_id else series_writer.series_ids(session, record_id)
        new_series = series_writer.add(session, record_id, samples, names=series)
        if samples:
            series_writer.roll(session, record_id, since=min(sample.at for sample in samples), until=report.at)
        self._flushes += 1
        if self._flushes % FLUSHES_PER_PRUNE == 0:
            series_writer.prune(session, record_id, now=report.at)
            return record_id, series_writer.series_ids(session, record_id)
        return record_id, {**series, **new_series} if new_series else series
