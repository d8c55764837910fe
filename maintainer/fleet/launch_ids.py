"""Launch ids: ULIDs, which sort by time and are valid in tags, names and tokens of every provider."""

import secrets
from collections.abc import Callable

from astraflow.contract.fleet import LaunchId

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class LaunchIds:
    """Generates increasing ids, even when the clock goes back. Source: the ULID specification."""

    def __init__(self, bits: Callable[[int], int] = secrets.randbits) -> None:
        """bits: returns a number with this many random bits."""
        self._bits = bits
        self._last = 0

    def next(self, now: float) -> LaunchId:
        """Returns the next id. now: Unix seconds."""
        fresh = (int(now * 1000) << 80) | self._bits(80)
        self._last = max(fresh, self._last + 1)
        return LaunchId("".join(_ALPHABET[(self._last >> shift) & 31] for shift in range(125, -1, -5)))
