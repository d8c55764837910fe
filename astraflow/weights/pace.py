"""How fast a node may fetch: one bound for all its connections."""

from astraflow.runtime.clock import Clock

SLICE_S = 0.1
"""What is asked for at once lasts this long at the full rate: the link sees no longer bursts than that a connection."""

SMALLEST_SLICE_BYTES = 64 * 2**10


class Pace:
    """Spreads requests over time. Reading slowly would not do: windows are large, and a sender fills them at once."""

    def __init__(self, max_bytes_per_s: float | None, clock: Clock) -> None:
        """max_bytes_per_s: None for no bound."""
        self._max_bytes_per_s = max_bytes_per_s
        self._clock = clock
        self._free_at = clock.now()

    def bounded(self, bytes_per_s: float) -> float:
        """A rate, or the bound where that is lower."""
        return bytes_per_s if self._max_bytes_per_s is None else min(bytes_per_s, self._max_bytes_per_s)

    def slice_bytes(self, missing_bytes: int) -> int:
        """How much of what is missing to ask for at once."""
        if self._max_bytes_per_s is None:
            return missing_bytes
        return min(missing_bytes, max(SMALLEST_SLICE_BYTES, int(self._max_bytes_per_s * SLICE_S)))

    async def wait_for(self, size_bytes: int) -> None:
        """Until so many bytes may be asked for."""
        if self._max_bytes_per_s is None:
            return
        now = self._clock.now()
        begins_at = max(self._free_at, now)
        self._free_at = begins_at + size_bytes / self._max_bytes_per_s
        if begins_at > now:
            await self._clock.sleep(begins_at - now)
