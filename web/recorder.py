"""Writes what was seen of the run to the database, in batches, beside the feed and never in its way."""

import asyncio
import dataclasses

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from astraflow.contract.reports import Report
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web import queries
from web.db import Database
from web.points import KEPT_POINTS, Point
from web.report_json import report_to_json
from web.tables import RunPoint

log = get_logger()

FLUSH_S = 2.0
KEPT_RECORDED_POINTS = 6 * 3600
"""Points of a run that stay in the database: six hours at one a second."""

PRUNE_EVERY = 150
"""Flushes between two prunings."""


class Recorder:
    """Holds points until the next flush. While the database cannot be written, the newest fifteen minutes wait."""

    def __init__(self, database: Database, *, dataflow: str, recipe: str, clock: Clock) -> None:
        self._database = database
        self._dataflow = dataflow
        self._recipe = recipe
        self._clock = clock
        self._waiting: list[Point] = []
        self._report: Report | None = None
        self._has_report = asyncio.Event()
        self._run_id: int | None = None
        self._flushes = 0

    @property
    def run_id(self) -> int | None:
        """Record of the run that is live; None until the first flush."""
        return self._run_id

    def add(self, report: Report, points: list[Point]) -> None:
        """Take new points, oldest first, and the report they end with."""
        if self._report is not None and (report.run != self._report.run or report.sequence < self._report.sequence):
            self._waiting, self._run_id = [], None
        self._report = report
        self._has_report.set()
        self._waiting = (self._waiting + points)[-KEPT_POINTS:]

    async def run(self) -> None:
        """Flush at the first report, then every two seconds until cancelled, then once more."""
        await self._has_report.wait()
        try:
            await periodic(self._try_flush, every_s=FLUSH_S, clock=self._clock)
        finally:
            await asyncio.shield(self._try_flush())

    async def flush(self) -> None:
        """Write what waits. Raises: DBAPIError; what could not be written waits on."""
        report, points, run_id = self._report, self._waiting, self._run_id
        if report is None:
            return
        written_id = await self._database.do(lambda session: self._write(session, report, points, run_id))
        if self._report is not None and self._report.run == report.run and self._run_id == run_id:
            self._run_id = written_id
            self._waiting = [point for point in self._waiting if point.sequence > report.sequence]

    async def _try_flush(self) -> None:
        try:
            await self.flush()
        except DBAPIError as problem:
            log.warning("recording_failed", problem=str(problem.orig), waiting=len(self._waiting))

    def _write(self, session: Session, report: Report, points: list[Point], run_id: int | None) -> int:
        sighting = queries.Sighting(
            name=report.run,
            recipe=self._recipe,
            dataflow=self._dataflow,
            started_at=report.at - report.uptime_s,
            at=report.at,
            sequence=report.sequence,
            report_json=report_to_json(report),
        )
        run_id = queries.see_run(session, sighting, record_id=run_id)
        queries.add_points(session, [row for point in points for row in _rows(run_id, point)])
        self._flushes += 1
        if self._flushes % PRUNE_EVERY == 0:
            queries.prune_points(session, run_id, before_sequence=report.sequence - KEPT_RECORDED_POINTS)
        return run_id


def _rows(run_id: int, point: Point) -> list[RunPoint]:
    return [
        RunPoint(run_id=run_id, policy=policy, sequence=point.sequence, at=point.at, **dataclasses.asdict(values))
        for policy, values in point.policies.items()
    ]
