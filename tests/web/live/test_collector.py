"""The collector follows the report through lost connections without gaps or duplicates."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import Unavailable
from astraflow.contract.reports.report import Report
from tests.fakes.clock import ManualClock
from tests.fakes.synthetic_run import SyntheticRun
from web.history.points import Point
from web.history.samples import Sample
from web.live.collector import Collector
from web.state.run_state import ConnectionState, RunState

WORLD = SyntheticRun()
HISTORY_S = 900


CUT = "the connection was cut"


class ScriptedSource:
    """Scripted report streams: each is a list of seconds and ends like a lost connection."""

    def __init__(self, streams: Sequence[Sequence[int]], synthetic_run: SyntheticRun = WORLD) -> None:
        self._streams = list(streams)
        self._world = synthetic_run
        self._now = 0
        self.is_done = asyncio.Event()

    async def watch_report(self, *, nodes_per_s: int | None = None) -> AsyncIterator[Report]:
        if not self._streams:
            self.is_done.set()
            await asyncio.Event().wait()
        for second in self._streams.pop(0):
            self._now = second
            yield self._world.report(second)
        raise Unavailable(CUT)

    async def iterate_history(
        self, *, after_sequence: int = 0, limit: int = 900, resolution_s: int = 1
    ) -> AsyncIterator[Report]:
        if resolution_s == 60:
            seconds = range(-(-(after_sequence + 1) // 60) * 60, self._now + 1, 60)[-limit:]
        else:
            seconds = range(max(after_sequence + 1, self._now - min(limit, HISTORY_S) + 1), self._now + 1)
        for second in seconds:
            yield self._world.report(second, is_history=True)


class InMemoryRecorder:
    """Keeps the sequence numbers of added reports."""

    def __init__(self, recorded: int = 0) -> None:
        self.sequences: list[int] = []
        self.observed: list[int] = []
        self._recorded = recorded

    async def recorded_until(self, run: str) -> int:
        return self._recorded

    def add(self, report: Report, point: Point | None) -> list[Sample]:
        self.sequences.append(report.sequence)
        return []

    def observe(self, run: str, report: Report, samples: object, fleet: object = None) -> None:
        self.observed.append(report.sequence)


class Followed:
    """A running collector and its output."""

    def __init__(self, source: ScriptedSource, *, recorded: int = 0) -> None:
        self.clock = ManualClock()
        self.keeper = InMemoryRecorder(recorded)
        self.state = RunState(self.clock)
        self.points: list[Point] = []
        self.feeds: list[ConnectionState] = []
        self.source = source
        self.collector = Collector(
            source,
            self.state,
            recorder=self.keeper,
            observer=self.keeper,
            clock=self.clock,
            on_points=self._on_points,
            on_feed=self._on_feed,
        )

    async def run(self) -> None:
        working = asyncio.ensure_future(self.collector.run())
        while not self.source.is_done.is_set():
            await self.clock.pass_time(3)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    def _on_points(self, report: Report, points: list[Point]) -> None:
        self.points += points

    def _on_feed(self) -> None:
        self.feeds.append(self.state.connection.state)


@pytest.mark.anyio
async def test_the_first_report_brings_the_history_with_it() -> None:
    followed = Followed(ScriptedSource([[40, 41]]))

    await followed.run()

    assert [point.sequence for point in followed.points] == list(range(1, 42))
    assert followed.state.report is not None
    assert followed.state.report.sequence == 41
    assert followed.keeper.observed == followed.keeper.sequences


@pytest.mark.long
@pytest.mark.anyio
async def test_seconds_of_a_lost_connection_are_filled_in() -> None:
    followed = Followed(ScriptedSource([[3, 4], [], [90, 91]]))

    await followed.run()

    assert [point.sequence for point in followed.points] == list(range(1, 92))
    assert ConnectionState.LOST in followed.feeds


@pytest.mark.long
@pytest.mark.anyio
async def test_after_a_long_absence_minutes_precede_the_remaining_seconds() -> None:
    followed = Followed(ScriptedSource([[2000]]), recorded=130)

    await followed.run()

    minutes = [180, 240, 300, 360, 420, 480, 540, 600, 660, 720, 780, 840, 900, 960, 1020, 1080]
    assert followed.keeper.sequences == [*minutes, *range(1101, 2001)]


@pytest.mark.long
@pytest.mark.anyio
async def test_recorded_points_are_not_requested_again_as_minutes() -> None:
    followed = Followed(ScriptedSource([[2000]]), recorded=1100)

    await followed.run()

    assert followed.keeper.sequences == list(range(1101, 2001))


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), max_size=4), max_size=4))
def test_every_second_is_present_once_whatever_is_lost(jumps: list[list[int]]) -> None:
    second, streams = 0, []
    for jump in jumps:
        streams.append([second := second + step for step in jump])  # noqa: PERF401 (`second` continues over all lists)
    source = ScriptedSource(streams)
    followed = Followed(source)

    asyncio.run(followed.run())

    assert [point.sequence for point in followed.points] == list(range(1, second + 1))


@pytest.mark.anyio
async def test_another_run_at_the_same_address_resets_the_state() -> None:
    other = SyntheticRun(run="second-run")
    source = ScriptedSource([[50, 51], [3]])
    followed = Followed(source)
    working = asyncio.ensure_future(followed.collector.run())
    await followed.clock.pass_time(0)
    source._world = other
    await followed.clock.pass_time(5)
    working.cancel()

    assert followed.state.report is not None
    assert followed.state.report.run == "second-run"
    assert followed.state.series.last_sequence == 3
    assert len(followed.state.series) == 3


@pytest.mark.anyio
async def test_a_lost_feed_keeps_the_last_report_and_names_the_cause() -> None:
    followed = Followed(ScriptedSource([[7]]))

    await followed.run()

    assert followed.state.connection.state is ConnectionState.LOST
    assert followed.state.connection.problem == CUT
    assert followed.state.report is not None
    assert followed.state.is_stale or followed.state.age_s is not None
