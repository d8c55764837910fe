"""The hub sends the same frame to all listeners; a listener that falls behind gets a snapshot."""

import asyncio

import pytest

from web.live.hub import QUEUE_FRAMES, RETAINED_FRAMES, Hub

pytestmark = pytest.mark.anyio


def hub_at(*sequences: int) -> Hub:
    hub = Hub(lambda after: f"snapshot after {after}")
    for sequence in sequences:
        hub.publish(sequence, f"frame {sequence}")
    return hub


async def test_a_new_listener_gets_what_follows_its_sequence() -> None:
    hub = hub_at(1, 2, 3)
    frames = hub.frames(1)

    assert [await anext(frames), await anext(frames)] == ["frame 2", "frame 3"]
    hub.publish(4, "frame 4")
    assert await anext(frames) == "frame 4"
    await frames.aclose()


async def test_dropped_frames_are_replaced_by_a_snapshot() -> None:
    hub = hub_at(*range(1, RETAINED_FRAMES + 10))

    assert await anext(hub.frames(3)) == "snapshot after 3"


async def test_a_sequence_from_the_future_gets_a_snapshot() -> None:
    assert await anext(hub_at(1, 2).frames(900)) == "snapshot after 900"


async def test_a_gap_in_the_sequence_drops_older_frames() -> None:
    hub = hub_at(1, 2, 8)

    assert await anext(hub.frames(2)) == "snapshot after 2"
    assert await anext(hub.frames(7)) == "frame 8"


async def test_a_listener_that_falls_behind_gets_one_snapshot_from_where_it_was() -> None:
    hub = hub_at(1)
    slow = hub.frames(1)
    first = asyncio.ensure_future(anext(slow))
    await asyncio.sleep(0)
    for sequence in range(2, QUEUE_FRAMES + 5):
        hub.publish(sequence, f"frame {sequence}")

    assert await first == "snapshot after 1"
    hub.publish(QUEUE_FRAMES + 5, "next")
    assert await anext(slow) == "next"


async def test_heartbeats_reach_every_listener_and_are_not_repeated() -> None:
    hub = hub_at(1)
    frames = hub.frames(1)
    waiting = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    hub.broadcast("heartbeat")

    assert await waiting == "heartbeat"
    late = asyncio.ensure_future(anext(hub.frames(1)))
    await asyncio.sleep(0)
    assert not late.done()
    late.cancel()


async def test_closing_ends_every_stream_and_removes_every_listener() -> None:
    hub = hub_at(1)
    streams = [asyncio.ensure_future(_all(hub)) for _ in range(3)]
    await asyncio.sleep(0)
    assert hub.listeners == 3
    hub.close()

    assert await asyncio.gather(*streams) == [[], [], []]
    assert hub.listeners == 0


async def _all(hub: Hub) -> list[str]:
    return [text async for text in hub.frames(1)]
