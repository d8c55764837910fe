"""Follows dataflow's report: one task, for ever, through every loss of the connection, without gaps."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from astraflow.contract.errors import AstraFlowError, CorruptData, DeadlineExceeded, RateLimited, Unavailable
from astraflow.contract.reports import Report
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web.feed.state import FeedState, RunState
from web.history.checking import MAX_TEXT, ReportChecker
from web.history.points import KEPT_POINTS, Point

log = get_logger()

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 2.0
SILENCE_S = 10.0
"""A stream that says nothing for so long is dialled anew, although the connection looks open."""


MOST_MINUTES = 720
"""Minutes that are fetched at most after a long absence: half a day."""


NODES_PER_S = 2000
"""A larger fleet is looked at node by node every few seconds: 10,000 nodes every five. All else is new every second."""


class ReportSource(Protocol):
    """What is followed: the client of the control plane."""

    def watch_report(self, *, nodes_per_s: int | None = None) -> AsyncIterator[Report]:
        """The latest report at once, then one a second; of many nodes, so many are new each second."""

    def past(
        self, *, after_sequence: int = 0, limit: int = KEPT_POINTS, resolution_s: int = 1
    ) -> AsyncIterator[Report]:
        """Reports with a greater sequence, oldest first: every second's, or one a minute."""


class Keeper(Protocol):
    """What keeps the run's numbers: the recorder."""

    async def recorded_until(self, run: str) -> int:
        """Sequence up to which the run of that name is recorded; 0 for a new one."""

    def add(self, report: Report, point: Point | None) -> None:
        """Take a report, in the order of their sequence, and its point when it is a new one."""


class Collector:
    """Keeps a `RunState` true.

    Each time the stream begins, and whenever its sequence jumps, what lies between is fetched from the history before
    the new report is taken: reports that arrive meanwhile wait in the stream, so no second is missing and none is
    counted twice. What is older than dataflow's seconds, and not recorded, comes as its minutes.

    on_points: called with new points, oldest first, and the report they end with. on_feed: called when the feed's
    state may have changed.
    """

    def __init__(
        self,
        source: ReportSource,
        state: RunState,
        *,
        keeper: Keeper,
        clock: Clock,
        on_points: Callable[[Report, list[Point]], None],
        on_feed: Callable[[], None],
    ) -> None:
        self._source = source
        self._state = state
        self._keeper = keeper
        self._clock = clock
        self._on_points = on_points
        self._on_feed = on_feed
        self._checker = ReportChecker()

    async def run(self) -> None:
        """Work until cancelled."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                await self._follow()
            except AstraFlowError as problem:
                if self._state.feed.state is FeedState.LIVE:
                    delay_s = FIRST_DELAY_S
                    log.warning("feed_lost", problem=str(problem))
                rest_s = delay_s * random.uniform(0.7, 1.3)
                self._state.lose(str(problem), next_try_s=rest_s)
                self._on_feed()
                await self._clock.sleep(rest_s)
                self._state.trying()
            delay_s = min(delay_s * 2, MAX_DELAY_S)

    async def _follow(self) -> None:
        reports = self._source.watch_report(nodes_per_s=NODES_PER_S)
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    report = await anext(reports)
            except TimeoutError:
                raise Unavailable(f"dataflow is connected but sent no report for {SILENCE_S:.0f} s") from None
            except StopAsyncIteration:
                raise Unavailable("dataflow ended the stream of reports") from None
            try:
                await self._take(self._checker.checked(report))
            except (Unavailable, DeadlineExceeded, RateLimited):
                raise  # the connection failed, not the report
            except Exception as problem:  # a report's content never ends the process
                self._skip(report, problem)

    def _skip(self, report: Report, problem: Exception) -> None:
        self._state.skipped += 1
        said = f"{type(problem).__name__}: {problem}"[:MAX_TEXT]
        log.warning("report_skipped", sequence=report.sequence, problem=said, skipped=self._state.skipped)

    async def _take(self, report: Report) -> None:
        if self._state.is_other_run(report):
            log.info("run_changed", run=report.run)
            self._state.forget()
        points: list[Point] = []
        if report.sequence > self._state.series.last_sequence + 1:
            points = await self._missing(report)
        point = self._state.update(report)
        self._keeper.add(report, point)
        if point is not None:
            points.append(point)
        self._on_points(report, points)

    async def _missing(self, report: Report) -> list[Point]:
        """Fill in what the history has between the newest point and this report."""
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
            point = self._state.fill(checked)
            self._keeper.add(checked, point)
        except Exception as problem:  # a recorded report's content never ends the process
            self._skip(old, problem)
        else:
            points += [] if point is None else [point]

    async def _between(self, last: int, report: Report) -> AsyncIterator[Report]:
        """Seconds that dataflow still has, after minutes of what came before them, as far as it is not recorded."""
        first = None
        async for old in self._source.past(after_sequence=last, limit=KEPT_POINTS):
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
        """Minutes before the sequence `first`."""
        known = max(last, await self._keeper.recorded_until(report.run))
        if first <= known + 1:
            return
        async for old in self._source.past(after_sequence=known, limit=MOST_MINUTES, resolution_s=60):
            if old.run == report.run and old.sequence < first:
                yield old
