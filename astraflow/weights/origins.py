"""Where versions come from: mirrors and the run's store, in order of preference, each with warm connections."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.weights.config import PullConfig
from astraflow.weights.pace import Pace
from astraflow.wire.channel import Link

log = get_logger()

FIRST_REST_S = 5.0
MAX_REST_S = 300.0
"""A place that failed is tried again this much later, doubling each time."""


class Origin:
    """One place, and how it has done so far."""

    def __init__(self, name: str, clients: Sequence[WeightPlaneClient]) -> None:
        """name: its address. clients: at least one; each over a connection of its own, kept from version to version,
        since what a connection has learned about a long way is worth seconds."""
        self.name = name
        self.clients = tuple(clients)
        self.failures = 0
        self.rests_until = 0.0
        self.bytes_per_s = 0.0
        """What it brought when it was last used for long enough to tell; 0 when not known."""
        self._rest_s = FIRST_REST_S

    @property
    def client(self) -> WeightPlaneClient:
        """For what is no bulk."""
        return self.clients[0]

    def failed(self, now: float) -> float:
        """Leave it alone for a while; returns how long."""
        self.failures += 1
        rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, MAX_REST_S)
        self.rests_until = now + rest_s
        return rest_s

    def served(self) -> None:
        """It brought a version."""
        self.rests_until, self._rest_s = 0.0, FIRST_REST_S


class Origins:
    """All of a node's, for all its policies, with the bound on what they bring together."""

    def __init__(self, origins: Sequence[Origin], *, pace: Pace | None = None, clock: Clock | None = None) -> None:
        """origins: the one to be preferred first; at least one."""
        self._clock = clock or SystemClock()
        self.pace = pace or Pace(None, self._clock)
        self.all = tuple(origins)

    def usable(self) -> tuple[Origin, ...]:
        """Those that do not rest; when all do, all, the one that has rested most first."""
        now = self._clock.now()
        awake = tuple(origin for origin in self.all if origin.rests_until <= now)
        return awake or tuple(sorted(self.all, key=lambda origin: origin.rests_until))

    def best_besides(self, origin: Origin) -> float:
        """The highest rate, bytes/s, that another one which does not rest had when it was used last; 0 when unknown."""
        return max((other.bytes_per_s for other in self.usable() if other is not origin), default=0.0)

    def set_aside(self, origin: Origin, problem: Exception) -> None:
        """Go on without it for a while, where there are others."""
        rest_s = origin.failed(self._clock.now())
        if len(self.all) > 1:
            log.warning("weights_origin_left", origin=origin.name, rest_s=rest_s, problem=str(problem))


@asynccontextmanager
async def dialled(
    store: str, config: PullConfig, *, dial: Callable[..., Link], clock: Clock | None = None
) -> AsyncIterator[Origins]:
    """The mirrors that `config` names, then the run's store at `store` (`HOST:PORT`), connected while the block runs.

    dial: as `Badge.dial`. Raises: InvalidInput for an address that cannot work.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as links:

        async def connected(address: str) -> WeightPlaneClient:
            link = dial(address, has_own_connection=True)
            return WeightPlaneClient(await links.enter_async_context(link))

        addresses = tuple(dict.fromkeys((*config.sources, store)))
        origins = [
            Origin(address, [await connected(address) for _ in range(config.connections)]) for address in addresses
        ]
        yield Origins(origins, pace=Pace(config.max_bytes_per_s, clock), clock=clock)
