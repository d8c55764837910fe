"""How often one peer may ask: joining, enrolling, and being wrong about who it is.

A peer is an address without its port; of IPv6, its /64. What it may is a bucket that fills again: a burst, and a rate
afterwards. Whoever has been let in goes on with what it showed then, whatever others behind the same address do.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

from astraflow.contract.errors import RateLimited
from astraflow.runtime.clock import Clock

KEPT = 4096
"""Peers, and tokens that were good, that are remembered; the one that was longest quiet is forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A bucket of `burst` calls that fills again at `per_minute`."""

    burst: int
    per_minute: float


FAILURES = Rate(burst=10, per_minute=10.0)
"""Failed authentications of one peer."""


class Buckets:
    """What each peer has left of one rate."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """Calls that were left, and when. Full buckets are as good as forgotten."""

    def __len__(self) -> int:
        return len(self._left)

    def missing_s(self, peer: Hashable) -> float:
        """Seconds until the peer may ask once more; 0 for now."""
        return max(0.0, (1.0 - self._filled(peer)) * 60.0 / self._rate.per_minute)

    def take(self, peer: Hashable) -> None:
        """Count one call, down to nothing left."""
        self._left[peer] = (max(0.0, self._filled(peer) - 1.0), self._clock.now())
        self._left.move_to_end(peer)
        while len(self._left) > KEPT:
            self._left.popitem(last=False)

    def _filled(self, peer: Hashable) -> float:
        left, at = self._left.get(peer, (float(self._rate.burst), 0.0))
        return min(self._rate.burst, left + (self._clock.now() - at) * self._rate.per_minute / 60.0)


class Limits:
    """One for a door."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = Buckets(FAILURES, clock)
        self._routes: dict[str, Buckets] = {}
        self._good: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Peers and what they were let in with."""

    def check_failures(self, peer: str, token: str) -> None:
        """Before anything is said about a token. Raises: RateLimited for a peer that was wrong too often lately, unless
        this very token was good before: a stranger behind the same address keeps nobody from their work."""
        if not self._failures or (peer, token) in self._good:
            return
        wait_s = self._failures.missing_s(peer)
        if wait_s > 0:
            raise RateLimited(
                f"{peer} was refused {FAILURES.burst} times within a minute, with tokens or certificates that are not "
                f"good here: the next is looked at in {wait_s:.0f} s"
            )

    def failed(self, peer: str, token: str) -> None:
        """It was not good, or is not any more."""
        self._failures.take(peer)
        self._good.pop((peer, token), None)

    def succeeded(self, peer: str, token: str) -> None:
        """It was good."""
        known = (peer, token)
        if known not in self._good:
            self._good[known] = None
            while len(self._good) > KEPT:
                self._good.popitem(last=False)

    def check_rate(self, peer: str, method: str, rate: Rate) -> None:
        """Count a call of a route that has a rate. Raises: RateLimited when there were too many."""
        buckets = self._routes.setdefault(method, Buckets(rate, self._clock))
        wait_s = buckets.missing_s(peer)
        if wait_s > 0:
            raise RateLimited(
                f"{peer} asks for {method.rpartition('/')[2]} more than {rate.burst} times at once and "
                f"{rate.per_minute:g} times a minute: ask again in {max(1.0, wait_s):.0f} s"
            )
        buckets.take(peer)


@lru_cache(maxsize=KEPT)
def host_of(peer: str) -> str:
    """Whom gRPC names, without the port: an address, of IPv6 the network that one customer has (/64).

    >>> host_of("ipv4:10.0.0.5:50000"), host_of("ipv6:%5B2001:db8::7%5D:50000"), host_of("unix:")
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
