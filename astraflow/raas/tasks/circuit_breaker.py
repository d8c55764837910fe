"""Circuit breaker: stops a node with a failing engine from consuming the run's tasks."""

from collections.abc import Callable

from astraflow.contract.rollouts.failures import Failure
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0


class CircuitBreaker:
    """Counts consecutive infrastructure failures and backs off.

        closed ──`limit` consecutive failures──► open: back off ──► one task ──success──► closed
                                                  ▲                   │
                                                  └──────failure──────┘ the back-off doubles

    Failures of workflow or reward count as success of the node: the task would fail on every node.
    """

    def __init__(self, limit: Callable[[], int], clock: Clock) -> None:
        """limit: returns the consecutive failures that open the breaker."""
        self._limit = limit
        self._clock = clock
        self._consecutive_failures = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._backoff_until = 0.0

    @property
    def is_open(self) -> bool:
        """True while tasks are tried one at a time."""
        return self._consecutive_failures >= self._limit()

    def record_outcome(self, failure: Failure | None) -> None:
        """Records the outcome of an episode."""
        if failure is None or not failure.boundary.is_infrastructure:
            self._consecutive_failures = 0
            self._backoff_s = FIRST_BACKOFF_S
            return
        self._consecutive_failures += 1
        now = self._clock.now()
        if self.is_open and now >= self._backoff_until:
            log.error(
                "circuit_breaker_opened",
                failures_in_a_row=self._consecutive_failures,
                backoff_s=self._backoff_s,
                last=failure.message,
            )
            self._backoff_until = now + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    async def wait_for_retry(self) -> None:
        """Waits until the next task may be tried."""
        while self.is_open and (left_s := self._backoff_until - self._clock.now()) > 0:
            await self._clock.sleep(left_s)
