"""How many episodes run at once, and how much of that was used."""

from astraflow.runtime.clock import Clock


class Capacity:
    """Slots for episodes, with the time they were used.

    busy_s: seconds in which all slots were used; a node with half of them used is busy for half a second each second.
    Weight refreshes count as use: the episodes wait, but they hold their slots. blocked_s: the rest, while the node
    would have taken more; time in which it leases nothing by its own doing counts as neither.
    """

    def __init__(self, slots: int, clock: Clock) -> None:
        self.slots = slots
        self.used = 0
        self._clock = clock
        self._is_open = False
        self._seen_at = clock.now()
        self._busy_s = 0.0
        self._blocked_s = 0.0

    @property
    def free(self) -> int:
        """Slots that are not used."""
        return self.slots - self.used

    def take(self) -> None:
        """An episode begins."""
        self._account()
        self.used += 1

    def release(self) -> None:
        """An episode ended."""
        self._account()
        self.used -= 1

    def set_open(self, is_open: bool) -> None:
        """Whether the node takes more tasks."""
        if is_open != self._is_open:
            self._account()
            self._is_open = is_open

    def times(self) -> tuple[float, float]:
        """busy_s and blocked_s until now."""
        self._account()
        return self._busy_s, self._blocked_s

    def _account(self) -> None:
        now = self._clock.now()
        passed_s = now - self._seen_at
        self._seen_at = now
        self._busy_s += passed_s * self.used / self.slots
        if self._is_open:
            self._blocked_s += passed_s * self.free / self.slots
