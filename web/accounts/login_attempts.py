"""Failed logins per network, counted to slow down guessing."""

import ipaddress
from collections import OrderedDict, deque

from astraflow.contract.errors import NotAuthenticated
from astraflow.runtime.clock import Clock

FAILURES_A_MINUTE = 10
MAX_ADDRESSES = 10_000
WINDOW_S = 60.0


class TooManyAttempts(NotAuthenticated):
    """Too many failed logins from this address in the last minute."""


class LoginAttempts:
    """Failed logins of the last minute. An attempt counts as failed until it succeeds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, address: str) -> None:
        """Starts an attempt. Raises: TooManyAttempts."""
        key, now = network_of(address), self._clock.now()
        failures = self._failures.setdefault(key, deque(maxlen=FAILURES_A_MINUTE))
        self._failures.move_to_end(key)
        if len(failures) == FAILURES_A_MINUTE and now - failures[0] < WINDOW_S:
            raise TooManyAttempts(
                "cannot log in: too many failed logins from this address in a minute; wait a minute and try again",
                code="login.too_many_attempts",
            )
        failures.append(now)
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def succeed(self, address: str) -> None:
        """Removes the latest attempt from the failures."""
        failures = self._failures.get(network_of(address))
        if failures:
            failures.pop()


def network_of(address: str) -> str:
    """Network of one customer: the /64 of an IPv6 address, the address itself for IPv4."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network(f"{parsed}/64", strict=False)) if parsed.version == 6 else str(parsed)
