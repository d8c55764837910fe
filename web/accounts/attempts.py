"""Failed logins, counted for each address, so that guessing is slow."""

import ipaddress
from collections import OrderedDict, deque

from astraflow.contract.errors import NotAuthenticated
from astraflow.runtime.clock import Clock

FAILURES_A_MINUTE = 10
KNOWN_ADDRESSES = 10_000
WINDOW_S = 60.0


class TooManyAttempts(NotAuthenticated):
    """This address failed too often in the last minute."""


class Attempts:
    """The failures of the last minute. An attempt counts as failed from its beginning until it is known to be none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, address: str) -> None:
        """One more attempt. Raises: TooManyAttempts."""
        key, now = network_of(address), self._clock.now()
        failures = self._failures.setdefault(key, deque(maxlen=FAILURES_A_MINUTE))
        self._failures.move_to_end(key)
        if len(failures) == FAILURES_A_MINUTE and now - failures[0] < WINDOW_S:
            raise TooManyAttempts("too many failed logins from this address in the last minute; wait one and try again")
        failures.append(now)
        while len(self._failures) > KNOWN_ADDRESSES:
            self._failures.popitem(last=False)

    def succeed(self, address: str) -> None:
        """The attempt that began last was none to count."""
        failures = self._failures.get(network_of(address))
        if failures:
            failures.pop()


def network_of(address: str) -> str:
    """One customer's address: for IPv6 that is a /64, of which everybody has all."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network(f"{found}/64", strict=False)) if found.version == 6 else str(found)
