"""Following the report through losses, without gaps and without doubles."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import Unavailable
from astraflow.contract.reports import Report
from tests.fakes.clock import ManualClock
from tests.fakes.world import World
from web.feed.collector import Collector
from web.feed.state import FeedState, RunState
from web.history.points import Point

WORLD = World()
KEPT_SECONDS = 900


class ScriptedSource:
    """Streams that were written down: each is a list of seconds, and ends as a lost connection does."""

    def __init__(self, streams: Sequence[Sequence[int]], world: World = WORLD) -> None:
        self._streams = list(streams)
        self._world = world
        self._now = 0
        self.is_done = asyncio.Event()

    async def watch_report(self, *, nodes_per_s: int | None = None) -> AsyncIterator[Report]:
        if not self._streams:
            self.is_done.set()
            await asyncio.Event().wait()
        for second in self._streams.pop(0):
            self._now = second
            yield self._world.report(second)
        raise Unavailable("the connection was cut")

    async def past(self, *, after_sequence: int = 0, limit: int = 900, resolution_s: int = 1) -> AsyncIterator[Report]:
        if resolution_s == 60:
            seconds = range(-(-(after_sequence + 1) // 60) * 60, self._now + 1, 60)[-limit:]
        else:
            seconds = range(max(after_sequence + 1, self._now - min(limit, KEPT_SECONDS) + 1), self._now + 1)
        for second in seconds:
            yield self._world.report(second, is_history=True)


class ListKeeper:
    """Remembers which reports it was told to keep."""

    def __init__(self, recorded: int = 0) -> None:
        self.sequences: list[int] = []
        self._recorded = recorded

    async def recorded_until(self, run: str) -> int:
        return self._recorded

    def add(self, report: Report, point: Point | None) -> None:
        self.sequences.append(report.sequence)


class Followed:
    """A collector at work, and what it passed on."""

    def __init__(self, source: ScriptedSource, *, recorded: int = 0) -> None:
        self.clock = ManualClock()
        self.keeper = ListKeeper(recorded)
        self.state = RunState(self.clock)
        self.points: list[Point] = []
        self.feeds: list[FeedState] = []
        self.source = source
        self.collector = Collector(
            source,
            self.state,
            keeper=self.keeper,
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
        self.feeds.append(self.state.feed.state)


@pytest.mark.anyio
async def test_the_first_report_brings_the_history_with_it() -> None:
    followed = Followed(ScriptedSource([[40, 41]]))

    await followed.run()

    assert [point.sequence for point in followed.points] == list(range(1, 42))
    assert followed.state.report is not None
    assert followed.state.report.sequence == 41


@pytest.mark.anyio
async def test_seconds_that_passed_while_the_connection_was_lost_are_filled_in() -> None:
    followed = Followed(ScriptedSource([[3, 4], [], [90, 91]]))

    await followed.run()

    assert [point.sequence for point in followed.points] == list(range(1, 92))
    assert FeedState.LOST in followed.feeds


@pytest.mark.anyio
async def test_after_a_long_absence_minutes_lead_up_to_the_seconds_that_are_left() -> None:
    followed = Followed(ScriptedSource([[2000]]), recorded=130)

    await followed.run()

    minutes = [180, 240, 300, 360, 420, 480, 540, 600, 660, 720, 780, 840, 900, 960, 1020, 1080]
    assert followed.keeper.sequences == [*minutes, *range(1101, 2001)]


@pytest.mark.anyio
async def test_what_is_recorded_is_not_asked_for_again_as_minutes() -> None:
    followed = Followed(ScriptedSource([[2000]]), recorded=1100)

    await followed.run()

    assert followed.keeper.sequences == list(range(1101, 2001))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), max_size=4), max_size=4))
def test_whatever_is_lost_every_second_is_there_once(jumps: list[list[int]]) -> None:
    second, streams = 0, []
    for jump in jumps:
        streams.append([second := second + step for step in jump])  # noqa: PERF401 (the sum runs on over all lists)
    source = ScriptedSource(streams)
    followed = Followed(source)

    asyncio.run(followed.run())

    assert [point.sequence for point in followed.points] == list(range(1, second + 1))


@pytest.mark.anyio
async def test_another_run_at_the_same_address_begins_anew() -> None:
    other = World(run="second-run")
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

    assert followed.state.feed.state is FeedState.LOST
    assert followed.state.feed.problem == "the connection was cut"
    assert followed.state.report is not None
    assert followed.state.is_stale or followed.state.age_s is not None
