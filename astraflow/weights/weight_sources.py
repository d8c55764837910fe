"""Sources of versions: mirrors and the run's store, in order of preference, each with open connections."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.weights.config import PullConfig
from astraflow.weights.rate_limiter import RateLimiter
from astraflow.wire.channel import ServiceChannel

log = get_logger()

FIRST_BACKOFF_S = 5.0
MAX_BACKOFF_S = 300.0
"""Pauses after a source failed: the first, and the limit of their doubling."""


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
