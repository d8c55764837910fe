"""A node whose engine only fails must not eat the run's tasks: it rests, then tries one."""

from astraflow.contract.failures import Failure
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

FIRST_REST_S = 1.0
MAX_REST_S = 30.0


class Breaker:
    """Counts infrastructure failures in a row.

        closed ──`limit` failures in a row──► open: rest ──► one task ──success──► closed
                                               ▲                │
                                               └────failure─────┘ the rest doubles

    A failure of workflow or reward says nothing about this node: the task would fail anywhere.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._in_a_row = 0
        self._rest_s = FIRST_REST_S
        self._rest_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether tasks are tried one at a time."""
        return self._in_a_row >= self._limit

    def observe(self, failure: Failure | None) -> None:
        """An episode ended."""
        if failure is None or not failure.boundary.is_infrastructure:
            self._in_a_row = 0
            self._rest_s = FIRST_REST_S
            return
        self._in_a_row += 1
        now = self._clock.now()
        if self.is_open and now >= self._rest_until:
            log.error("resting", failures_in_a_row=self._in_a_row, rest_s=self._rest_s, last=failure.message)
            self._rest_until = now + self._rest_s
            self._rest_s = min(2 * self._rest_s, MAX_REST_S)

    async def rest(self) -> None:
        """Wait until the next task may be tried."""
        while self.is_open and (left_s := self._rest_until - self._clock.now()) > 0:
            await self._clock.sleep(left_s)
