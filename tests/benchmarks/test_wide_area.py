"""The simulated long link carries packets, delays them, and loses them as configured."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.wide_area.fetches import Case, measure
from benchmarks.wide_area.link import FAR_ADDRESS, Direction, LinkSpec, running

SPEC = LinkSpec(bits_per_s=8e6, delay_s=0.1, queue_s=0.5)


def test_a_packet_is_delayed_by_serialization_and_propagation() -> None:
    way = Direction(SPEC, seed=0)
    for number in range(3):
        way.take(bytes([number]), 100_000, now=10.0)

    assert way.next_due == pytest.approx(10.2)
    assert way.due(10.19) is None
    assert [way.due(10.45), way.due(10.45), way.due(10.45)] == [b"\x00", b"\x01", b"\x02"]
    assert way.due(99.0) is None


def test_a_full_queue_drops_the_newest_packets() -> None:
    way = Direction(SPEC, seed=0)
    for _ in range(10):
        way.take(b"", 100_000, now=0.0)

    assert (way.packets, way.overflowed) == (6, 4)
    way.take(b"", 100_000, now=0.5)
    assert way.packets == 7


def test_jitter_is_bounded_and_keeps_the_order() -> None:
    way = Direction(replace(SPEC, jitter_s=0.05), seed=0)
    for number in range(50):
        way.take(bytes([number]), 1, now=0.001 * number)

    due: list[float] = []
    while way.next_due < 1.0:
        due.append(way.next_due)
        way.due(1.0)
    assert due == sorted(due)
    assert all(0.1 <= at - 0.001 * number <= 0.16 for number, at in enumerate(due))
    assert len({round(at - 0.001 * number, 6) for number, at in enumerate(due)}) > 5


def test_the_configured_share_of_packets_is_lost() -> None:
    way = Direction(replace(SPEC, loss=0.25), seed=0)
    for number in range(2000):
        way.take(b"", 1, now=float(number))

    assert 400 < way.lost < 600
    assert way.packets + way.lost == 2000


needs_link = pytest.mark.needs("link")


@pytest.mark.long
@needs_link
def test_connections_have_the_round_trip_time_and_rate_of_the_link() -> None:
    spec = LinkSpec(bits_per_s=1e9, delay_s=0.05)
    with running(spec) as link:
        module = [sys.executable, "-m", "benchmarks.wide_area.plain_tcp"]
        with subprocess.Popen(link.in_far(*module, "serve", FAR_ADDRESS, "7001"), stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"serving\n"
            fetch = link.in_near(*module, "fetch", FAR_ADDRESS, "7001", "1", "3", "8")
            lines = subprocess.run(fetch, capture_output=True, check=True, timeout=60).stdout.splitlines()
            server.terminate()
        counts = link.end()

    for seconds in (json.loads(line)["fetch_s"] for line in lines):
        assert seconds >= 0.1 + 8 * 8e6 / 1e9
    assert counts.size_bytes > 3 * 8_000_000
    assert (counts.lost, counts.in_outages) == (0, 0)


@pytest.mark.long
@needs_link
def test_a_version_is_transferred_over_a_lossy_link_with_outages() -> None:
    spec = LinkSpec(bits_per_s=4e8, delay_s=0.02, loss=0.002, jitter_s=0.005)
    case = Case(name="bad", spec=spec, connections=3, rounds=3, sizes_mb=(33,), outage_s=0.5)

    rounds, counts = measure(case)

    assert [round_.size_bytes for round_ in rounds] == [2 * 2**24] * 3
    assert counts.size_bytes > 3 * 2 * 2**24
    assert counts.lost > 0
