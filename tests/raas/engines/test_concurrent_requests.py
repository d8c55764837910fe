"""Compares concurrent requests with a slow, obvious loop: n requests get tokens at equal rates."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.raas.engines.concurrent_requests import ConcurrentRequests
from astraflow.raas.engines.timeline import Timeline, TokenSchedule
from tests.fakes.clock import ManualClock, settle

TICK_S = 0.001


def arrange(clock: ManualClock, *, half_speed_requests: float | None) -> tuple[Timeline, ConcurrentRequests]:
    timeline = Timeline(clock)
    return timeline, ConcurrentRequests(timeline, clock, half_speed_requests=half_speed_requests)


def schedule(timeline: Timeline, alone_s: float) -> TokenSchedule:
    return TokenSchedule(began_at=timeline.now(), first_token_s=alone_s, tokens=1, tokens_per_s=0.0)


async def ends(arrivals: Sequence[tuple[float, float]], *, half_speed_requests: float | None) -> list[float]:
    """Returns the end time of each request; arrivals: (arrival time, seconds it takes alone)."""
    clock = ManualClock(start=0.0)
    timeline, requests = arrange(clock, half_speed_requests=half_speed_requests)

    async def run_request(number: int, at: float, alone_s: float) -> float:
        await clock.sleep(at)
        await requests.wait_until_done(str(number), schedule(timeline, alone_s))
        return clock.now()

    tasks = [asyncio.create_task(run_request(number, *arrival)) for number, arrival in enumerate(arrivals)]
    await clock.pass_time(1000.0)
    return [task.result() for task in tasks]


def ends_of_the_loop(arrivals: Sequence[tuple[float, float]], *, half_speed_requests: float) -> list[float]:
    left = [alone_s for _, alone_s in arrivals]
    ends_s = [0.0] * len(arrivals)
    tick = 0
    while not all(ends_s):
        tick += 1
        running = [n for n, (at, _) in enumerate(arrivals) if at < tick * TICK_S and not ends_s[n]]
        for number in running:
            left[number] -= TICK_S / (1 + (len(running) - 1) / half_speed_requests)
            if left[number] <= 0:
                ends_s[number] = tick * TICK_S
    return ends_s


@pytest.mark.long
@given(
    arrivals=st.lists(st.tuples(st.floats(0, 2), st.floats(0.05, 1)), min_size=1, max_size=6),
    half_speed_requests=st.sampled_from([0.5, 1.0, 4.0]),
)
def test_request_times_match_a_reference_implementation(
    arrivals: list[tuple[float, float]], half_speed_requests: float
) -> None:
    end_times = asyncio.run(ends(arrivals, half_speed_requests=half_speed_requests))
    assert end_times == pytest.approx(ends_of_the_loop(arrivals, half_speed_requests=half_speed_requests), abs=0.05)


def test_without_load_slowdown_requests_are_independent() -> None:
    end_times = asyncio.run(ends([(0.0, 1.0), (0.25, 0.5), (0.5, 2.0)], half_speed_requests=None))
    assert end_times == [1.0, 0.75, 2.5]


@pytest.mark.anyio
async def test_an_aborted_request_speeds_up_the_others() -> None:
    clock = ManualClock(start=0.0)
    timeline, requests = arrange(clock, half_speed_requests=1.0)
    aborted, other = (asyncio.create_task(requests.wait_until_done(name, schedule(timeline, 1.0))) for name in "ab")
    await clock.pass_time(1.0)
    await requests.abort("a")
    await settle()
    assert (aborted.result(), other.done()) == (0.5, False)
    await clock.pass_time(0.49)
    assert not other.done()
    await clock.pass_time(0.02)
    assert other.result() == 1.0


@pytest.mark.anyio
async def test_while_time_is_stopped_requests_can_start_but_not_end() -> None:
    clock = ManualClock(start=0.0)
    timeline, requests = arrange(clock, half_speed_requests=1.0)
    early = asyncio.create_task(requests.wait_until_done("a", schedule(timeline, 1.0)))
    await clock.pass_time(0.5)
    timeline.stop()
    late = asyncio.create_task(requests.wait_until_done("b", schedule(timeline, 0.25)))
    await clock.pass_time(60.0)
    assert not early.done() and not late.done()
    timeline.start()
    requests.reschedule()
    await clock.pass_time(0.5)
    assert late.done() and not early.done()
    await clock.pass_time(0.26)
    assert early.done()
