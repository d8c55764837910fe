"""A peer that calls too often waits, and no longer than necessary."""

import pytest

from astraflow.access import rate_limits
from astraflow.access.rate_limits import FAILURES, PeerLimits, Rate, TokenBuckets, peer_host
from astraflow.contract.errors import RateLimited
from tests.fakes.clock import ManualClock


def test_a_bucket_refills_after_it_is_empty() -> None:
    clock = ManualClock()
    buckets = TokenBuckets(Rate(burst=2, per_minute=6.0), clock)
    waits_s = []
    for _ in range(4):
        waits_s.append(buckets.wait_s("a"))
        if waits_s[-1] == 0:
            buckets.take("a")
    assert waits_s == [0.0, 0.0, 10.0, 10.0]
    clock.advance(4.0)
    assert buckets.wait_s("a") == pytest.approx(6.0)
    assert buckets.wait_s("b") == 0.0
    clock.advance(3600.0)
    assert buckets.wait_s("a") == 0.0


def test_refused_calls_do_not_extend_the_block_after_failures() -> None:
    clock = ManualClock()
    limiter = PeerLimits(clock)
    for number in range(FAILURES.burst):
        limiter.record_failure("a", str(number))
    for _ in range(100):
        with pytest.raises(RateLimited):
            limiter.check_failures("a", "another")
    clock.advance(60.0 / FAILURES.per_minute)
    limiter.check_failures("a", "another")


def test_a_credential_that_stops_working_is_limited_like_any_other() -> None:
    limiter = PeerLimits(ManualClock())
    limiter.record_success("a", "mine")
    for number in range(FAILURES.burst):
        limiter.record_failure("a", str(number))
    limiter.check_failures("a", "mine")
    limiter.record_failure("a", "mine")
    with pytest.raises(RateLimited):
        limiter.check_failures("a", "mine")
    limiter.check_failures("b", "mine")


def test_the_number_of_remembered_peers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_REMEMBERED", 3)
    buckets = TokenBuckets(Rate(burst=1, per_minute=1.0), ManualClock())
    for peer in "abcd":
        buckets.take(peer)
    assert [peer for peer in "abcd" if buckets.wait_s(peer)] == ["b", "c", "d"]
    assert len(buckets) == 3


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1"),
        ("ipv6:%5B::1%5D:50000", "::1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:9", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:9", "fe80::/64"),
        ("unix:", "unix"),
    ],
)
def test_a_peer_is_identified_by_its_address_without_the_port(peer: str, host: str) -> None:
    assert peer_host(peer) == host
