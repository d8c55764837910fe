"""Limit of a node's fetch rate, over all its connections."""

from astraflow.runtime.clock import Clock

SLICE_S = 0.1
"""Duration of one request at the full rate, which is the longest burst of a connection."""

SMALLEST_SLICE_BYTES = 64 * 2**10


class RateLimiter:
    """Spreads requests over time. Slow reads would not limit the rate: senders fill the large windows at once."""

    def __init__(self, max_bytes_per_s: float | None, clock: Clock) -> None:
        """max_bytes_per_s: None for no limit."""
        self._max_bytes_per_s = max_bytes_per_s
        self._clock = clock
        self._free_at = clock.now()

    def limited_rate(self, bytes_per_s: float) -> float:
        """Returns the rate, or the limit if that is lower."""
        return bytes_per_s if self._max_bytes_per_s is None else min(bytes_per_s, self._max_bytes_per_s)

    def slice_bytes(self, missing_bytes: int) -> int:
        """Returns the number of missing bytes to request at once."""
        if self._max_bytes_per_s is None:
            return missing_bytes
        return min(missing_bytes, max(SMALLEST_SLICE_BYTES, int(self._max_bytes_per_s * SLICE_S)))

    async def wait_for(self, size_bytes: int) -> None:
        """Waits until so many bytes may be requested."""
        if self._max_bytes_per_s is None:
            return
        now = self._clock.now()
        begins_at = max(self._free_at, now)
        self._free_at = begins_at + size_bytes / self._max_bytes_per_s
        if begins_at > now:
            await self._clock.sleep(begins_at - now)
