"""Episode slots of a node and their utilization."""

from collections.abc import Callable

from astraflow.contract.rollouts.failures import Failure
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger


class Capacity:
    """Episode slots and the time they were used. The slots in effect follow the engines (`lease_limit`).

    busy_s: time in seconds weighted by the share of used slots; half of the slots used adds half a second per second.
    Shares refer to the limit in effect, so that a node at its limit is busy, whatever the upper limit of the operator:
    groups per busy second is then the rate that the engines sustain, as the sizer expects it. Episodes above a limit
    that has shrunk count as a full node. Weight refreshes count as used time: the episodes wait, but they hold their
    slots. blocked_s: the same for free slots while the node accepts tasks. Time in which the node itself refuses tasks
    counts as neither.
    """

    def __init__(self, slots: int, clock: Clock) -> None:
        self.slots = slots
        """Limit in effect. Episodes."""
        self.used_slots = 0
        self._peak_slots = 0
        self._released = 0
        self._clock = clock
        self._is_accepting = False
        self._accounted_at = clock.now()
        self._busy_s = 0.0
        self._blocked_s = 0.0

    @property
    def free_slots(self) -> int:
        """Number of unused slots; 0 above the limit."""
        return max(0, self.slots - self.used_slots)

    def set_slots(self, slots: int) -> None:
        """Sets the limit in effect, at least 1."""
        if slots != self.slots:
            self._account()
            self.slots = slots

    def acquire(self) -> None:
        """Takes a slot for an episode."""
        self._account()
        self.used_slots += 1
        self._peak_slots = max(self._peak_slots, self.used_slots)

    def release(self) -> None:
        """Frees the slot of an episode that ended."""
        self._account()
        self.used_slots -= 1
        self._released += 1

    def take_use(self) -> tuple[int, int]:
        """Returns the most slots used at once and the episodes that ended since the last call."""
        use = self._peak_slots, self._released
        self._peak_slots, self._released = self.used_slots, 0
        return use

    def set_accepting(self, is_accepting: bool) -> None:
        """Sets whether the node accepts more tasks."""
        if is_accepting != self._is_accepting:
            self._account()
            self._is_accepting = is_accepting

    def busy_and_blocked_s(self) -> tuple[float, float]:
        """Returns busy_s and blocked_s up to now."""
        self._account()
        return self._busy_s, self._blocked_s

    def _account(self) -> None:
        now = self._clock.now()
        elapsed_s = now - self._accounted_at
        self._accounted_at = now
        self._busy_s += elapsed_s * min(1.0, self.used_slots / self.slots)
        if self._is_accepting:
            self._blocked_s += elapsed_s * self.free_slots / self.slots


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
