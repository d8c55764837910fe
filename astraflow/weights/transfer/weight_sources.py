"""Sources of versions: mirrors and the run's store, in order of preference, each with open connections."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.weights.config import PullConfig
from astraflow.wire.channel import ServiceChannel

log = get_logger()

FIRST_BACKOFF_S = 5.0
MAX_BACKOFF_S = 300.0
"""Pauses after a source failed: the first, and the limit of their doubling."""

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


class WeightSource:
    """A source of versions, with its recent failures and rate."""

    def __init__(self, name: str, clients: Sequence[WeightPlaneClient]) -> None:
        """name: its address. clients: at least one; each with its own connection, kept open between versions, since
        the congestion state of a long link saves seconds."""
        self.name = name
        self.clients = tuple(clients)
        self.failures = 0
        self.backoff_until = 0.0
        self.bytes_per_s = 0.0
        """Rate of the last transfer that was long enough to measure; 0 when unknown."""
        self._backoff_s = FIRST_BACKOFF_S

    @property
    def client(self) -> WeightPlaneClient:
        """Client for requests other than bulk transfers."""
        return self.clients[0]

    def mark_failed(self, now: float) -> float:
        """Backs the source off after a failure; returns the pause in seconds."""
        self.failures += 1
        backoff_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, MAX_BACKOFF_S)
        self.backoff_until = now + backoff_s
        return backoff_s

    def mark_succeeded(self) -> None:
        """Ends the back-off after a successful pull."""
        self.backoff_until, self._backoff_s = 0.0, FIRST_BACKOFF_S


class WeightSources:
    """All sources of a node, for all its policies, with their common rate limit."""

    def __init__(
        self, sources: Sequence[WeightSource], *, rate_limiter: RateLimiter | None = None, clock: Clock | None = None
    ) -> None:
        """sources: at least one, the preferred one first."""
        self._clock = clock or SystemClock()
        self.rate_limiter = rate_limiter or RateLimiter(None, self._clock)
        self.all = tuple(sources)

    def available(self) -> tuple[WeightSource, ...]:
        """Returns the sources that are not backed off; if all are, all of them, the next to retry first."""
        now = self._clock.now()
        usable = tuple(source for source in self.all if source.backoff_until <= now)
        return usable or tuple(sorted(self.all, key=lambda source: source.backoff_until))

    def best_other_rate(self, source: WeightSource) -> float:
        """Returns the highest last rate, bytes/s, of the other available sources; 0 when unknown."""
        return max((other.bytes_per_s for other in self.available() if other is not source), default=0.0)

    def back_off(self, source: WeightSource, problem: Exception) -> None:
        """Pauses the use of a source after a failure, where there are others."""
        backoff_s = source.mark_failed(self._clock.now())
        if len(self.all) > 1:
            log.warning("weight_source_backed_off", source=source.name, backoff_s=backoff_s, problem=str(problem))


@asynccontextmanager
async def connect_sources(
    store: str, config: PullConfig, *, dial: Callable[..., ServiceChannel], clock: Clock | None = None
) -> AsyncIterator[WeightSources]:
    """Connects to the mirrors that `config` names, then the run's store at `store` (`HOST:PORT`), within the block.

    dial: as `HeldCredential.dial`. Raises: InvalidInput for an invalid address.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as links:

        async def connected(address: str) -> WeightPlaneClient:
            link = dial(address, has_own_connection=True)
            return WeightPlaneClient(await links.enter_async_context(link))

        addresses = tuple(dict.fromkeys((*config.sources, store)))
        sources = [
            WeightSource(address, [await connected(address) for _ in range(config.connections)])
            for address in addresses
        ]
        yield WeightSources(sources, rate_limiter=RateLimiter(config.max_bytes_per_s, clock), clock=clock)
