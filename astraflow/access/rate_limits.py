"""Rate limits per peer: joining, enrolling, and failed authentication.

A peer is an address without its port; for IPv6, its /64. Each rate is a token bucket: a burst, then a refill rate. A
token that was accepted before stays unaffected by other callers behind the same address.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

from astraflow.contract.errors import RateLimited
from astraflow.runtime.clock import Clock

MAX_REMEMBERED = 4096
"""Remembered peers and accepted tokens; the least recently used are dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A bucket of `burst` calls that refills at `per_minute`."""

    burst: int
    per_minute: float


FAILURES = Rate(burst=10, per_minute=10.0)
"""Limit of failed authentications of one peer."""


class TokenBuckets:
    """Token buckets of all peers for one rate."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._remaining: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """Remaining calls and their time, by peer. A peer with a full bucket may be absent."""

    def __len__(self) -> int:
        return len(self._remaining)

    def wait_s(self, peer: Hashable) -> float:
        """Returns the seconds until the peer's next call is allowed; 0 for now."""
        return max(0.0, (1.0 - self._available_calls(peer)) * 60.0 / self._rate.per_minute)

    def take(self, peer: Hashable) -> None:
        """Counts one call; an empty bucket stays empty."""
        self._remaining[peer] = (max(0.0, self._available_calls(peer) - 1.0), self._clock.now())
        self._remaining.move_to_end(peer)
        while len(self._remaining) > MAX_REMEMBERED:
            self._remaining.popitem(last=False)

    def _available_calls(self, peer: Hashable) -> float:
        remaining, at = self._remaining.get(peer, (float(self._rate.burst), 0.0))
        return min(self._rate.burst, remaining + (self._clock.now() - at) * self._rate.per_minute / 60.0)


class PeerLimits:
    """Limits of one server: failed authentications and calls per route."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = TokenBuckets(FAILURES, clock)
        self._routes: dict[str, TokenBuckets] = {}
        self._accepted: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Peers with the tokens that they were accepted with."""

    def check_failures(self, peer: str, token: str) -> None:
        """Checks the failure limit before a token is verified. Raises: RateLimited for a peer with too many recent
        failures, unless the same token was accepted before: other callers behind the same address do not block it."""
        if not self._failures or (peer, token) in self._accepted:
            return
        wait_s = self._failures.wait_s(peer)
        if wait_s > 0:
            raise RateLimited(
                f"cannot authenticate {peer}: {FAILURES.burst} attempts with invalid tokens or certificates failed "
                f"within a minute; retry in {wait_s:.0f} s",
                code="rate_limit.failures",
            )

    def record_failure(self, peer: str, token: str) -> None:
        """Records a failed authentication."""
        self._failures.take(peer)
        self._accepted.pop((peer, token), None)

    def record_success(self, peer: str, token: str) -> None:
        """Records a successful authentication."""
        accepted = (peer, token)
        if accepted not in self._accepted:
            self._accepted[accepted] = None
            while len(self._accepted) > MAX_REMEMBERED:
                self._accepted.popitem(last=False)

    def check_rate(self, peer: str, method: str, rate: Rate) -> None:
        """Counts a call of a route with a rate. Raises: RateLimited above the rate."""
        buckets = self._routes.setdefault(method, TokenBuckets(rate, self._clock))
        wait_s = buckets.wait_s(peer)
        if wait_s > 0:
            raise RateLimited(
                f"cannot call {method.rpartition('/')[2]!r}: {peer} exceeds {rate.burst} calls at once and "
                f"{rate.per_minute:g} calls a minute; retry in {max(1.0, wait_s):.0f} s",
                code="rate_limit.calls",
            )
        buckets.take(peer)


@lru_cache(maxsize=MAX_REMEMBERED)
def peer_host(peer: str) -> str:
    """Returns the host of a gRPC peer without the port; for IPv6 the customer network (/64).

    >>> peer_host("ipv4:10.0.0.5:50000"), peer_host("ipv6:%5B2001:db8::7%5D:50000"), peer_host("unix:")
    ('10.0.0.5', '2001:db8::/64', 'unix')
    """
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return host or kind
    if address.version == 4 or address.is_loopback:
        return str(address)
    return str(ip_network((address, 64), strict=False))
