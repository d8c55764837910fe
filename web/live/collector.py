"""Collector of dataflow's reports: one task that reconnects after every failure and leaves no gaps."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from astraflow.contract.errors import AstraFlowError, CorruptData, DeadlineExceeded, RateLimited, Unavailable
from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.reports.report import Report
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web.history.points import MAX_POINTS, Point
from web.history.report_checker import MAX_TEXT, ReportChecker
from web.history.samples import Sample
from web.state.run_state import ConnectionState, RunState

log = get_logger()

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 2.0
SILENCE_TIMEOUT_S = 10.0
"""Time without a report after which an open connection counts as lost. Seconds."""


MAX_BACKFILL_MINUTES = 720
"""Maximum number of minutes that are fetched after a long absence: half a day."""


NODES_PER_S = 2000
"""Nodes that a report updates per second: 10,000 nodes are complete every five seconds, all else every second."""


class ReportSource(Protocol):
    """Interface of the source of reports: the client of the control plane."""

    def watch_report(self, *, nodes_per_s: int | None = None) -> AsyncIterator[Report]:
        """Yields the newest report, then one per second, each with at most `nodes_per_s` updated nodes."""

    def iterate_history(
        self, *, after_sequence: int = 0, limit: int = MAX_POINTS, resolution_s: int = 1
    ) -> AsyncIterator[Report]:
        """Yields reports with a greater sequence, oldest first: one per second, or one per minute."""


class ReportRecorder(Protocol):
    """Interface of the recorder of a run's figures."""

    async def recorded_until(self, run: str) -> int:
        """Returns the sequence up to which a run is recorded; 0 for a new run."""

    def add(self, report: Report, point: Point | None) -> list[Sample]:
        """Adds a report in order of sequence, with its point when it is new; returns what will be recorded of it."""


class ReportObserver(Protocol):
    """Interface of the evaluation of alerts."""

    def observe(self, run: str, report: Report, samples: Iterable[Sample], fleet: FleetStatus | None = None) -> None:
        """Evaluates a report and what will be recorded of it. fleet: status of the fleet service at the same time."""


class Collector:
    """Keeps a `RunState` up to date.

    When the stream begins, and whenever its sequence jumps, the missing reports are fetched from the history before the
    new report is added. Reports that arrive meanwhile wait in the stream, so no second is missing and none is counted
    twice. Time that is older than dataflow's seconds, and not recorded, is fetched as minutes.

    on_points: called with new points, oldest first, and the report they end with. on_feed: called when the state of the
    connection may have changed. fleet_status: returns the current status of the fleet service; None without one.
    """

    def __init__(
        self,
        source: ReportSource,
        state: RunState,
        *,
        recorder: ReportRecorder,
        observer: ReportObserver,
        clock: Clock,
        on_points: Callable[[Report, list[Point]], None],
        on_feed: Callable[[], None],
        fleet_status: Callable[[], FleetStatus | None] = lambda: None,
    ) -> None:
        self._source = source
        self._state = state
        self._recorder = recorder
        self._observer = observer
        self._clock = clock
        self._on_points = on_points
        self._on_feed = on_feed
        self._fleet_status = fleet_status
        self._checker = ReportChecker()

    async def run(self) -> None:
        """Collects reports until cancelled."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                await self._follow()
            except AstraFlowError as error:
                if self._state.connection.state is ConnectionState.LIVE:
                    delay_s = FIRST_DELAY_S
                    log.warning("connection to dataflow lost", problem=str(error))
                wait_s = delay_s * random.uniform(0.7, 1.3)
                self._state.record_failure(str(error), next_try_s=wait_s)
                self._on_feed()
                await self._clock.sleep(wait_s)
                self._state.record_retry()
            delay_s = min(delay_s * 2, MAX_DELAY_S)

    async def _follow(self) -> None:
        reports = self._source.watch_report(nodes_per_s=NODES_PER_S)
        while True:
            try:
                async with asyncio.timeout(SILENCE_TIMEOUT_S):
                    report = await anext(reports)
            except TimeoutError:
                raise Unavailable(
                    f"cannot follow the reports: dataflow sent none for {SILENCE_TIMEOUT_S:.0f} s", code="report.silent"
                ) from None
            except StopAsyncIteration:
                raise Unavailable(
                    "cannot follow the reports: dataflow ended the stream", code="report.stream_ended"
                ) from None
            try:
                await self._checker.check_nodes(report.nodes)
                await self._accept(self._checker.checked(report))
            except (Unavailable, DeadlineExceeded, RateLimited):
                raise  # the connection failed, not the report
            except Exception as problem:  # the content of a report must not end the process
                self._skip(report, problem)

    def _skip(self, report: Report, problem: Exception) -> None:
        self._state.skipped_reports += 1
        description = f"{type(problem).__name__}: {problem}"[:MAX_TEXT]
        log.warning(
            "report skipped", sequence=report.sequence, problem=description, skipped=self._state.skipped_reports
        )

    async def _accept(self, report: Report) -> None:
        if self._state.is_other_run(report):
            log.info("run changed", run=report.run)
            self._state.reset()
        points: list[Point] = []
        if report.sequence > self._state.series.last_sequence + 1:
            points = await self._missing(report)
        point = self._state.update(report)
        samples = self._recorder.add(report, point)
        self._observer.observe(report.run, report, samples, self._fleet_status())
        await asyncio.sleep(0)  # requests are served between the parts, each of which takes 15 ms with 10,000 nodes
        if point is not None:
            points.append(point)
        self._on_points(report, points)

    async def _missing(self, report: Report) -> list[Point]:
        """Adds the reports of the history between the newest point and this report."""
        points: list[Point] = []
        try:
            async for old in self._between(self._state.series.last_sequence, report):
                self._fill(old, points)
        except CorruptData as problem:
            self._skip(report, problem)
        return points

    def _fill(self, old: Report, points: list[Point]) -> None:
        try:
            checked = self._checker.checked(old)
            point = self._state.add_past_report(checked)
            samples = self._recorder.add(checked, point)
            self._observer.observe(checked.run, checked, samples)
        except Exception as problem:  # the content of a recorded report must not end the process
            self._skip(old, problem)
        else:
            points += [] if point is None else [point]

    async def _between(self, last: int, report: Report) -> AsyncIterator[Report]:
        """Yields the reports that are not recorded: minutes first, then the seconds that dataflow still stores."""
        first = None
        async for old in self._source.iterate_history(after_sequence=last, limit=MAX_POINTS):
            if old.run != report.run or old.sequence >= report.sequence:
                continue
            if first is None:
                first = old.sequence
                async for older in self._older(report, last, first):
                    yield older
            yield old
        if first is None:
            async for older in self._older(report, last, report.sequence):
                yield older

    async def _older(self, report: Report, last: int, first: int) -> AsyncIterator[Report]:
        """Yields the minutes before the sequence `first`."""
        recorded_until = max(last, await self._recorder.recorded_until(report.run))
        if first <= recorded_until + 1:
            return
        async for old in self._source.iterate_history(
            after_sequence=recorded_until, limit=MAX_BACKFILL_MINUTES, resolution_s=60
        ):
            if old.run == report.run and old.sequence < first:
                yield old
