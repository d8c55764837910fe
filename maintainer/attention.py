"""When to wake: something new is the matter, something still is at the next look, or a change did not come off."""

from collections.abc import Sequence

from astraflow.runtime.clock import Clock
from maintainer.config import WatchConfig
from maintainer.observation import Signal

FIRST_REST_S = 30.0
LONGEST_REST_S = 1800.0


class Attention:
    """What the model has been told, and until when it is left alone."""

    def __init__(self, watch: WatchConfig, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock
        self._told: set[tuple[str, str, str]] = set()
        self._look_at = clock.now() + watch.look_s
        self._not_before = clock.now()
        self._rest_s = FIRST_REST_S

    @property
    def next_in_s(self) -> float:
        """Until it looks again if nothing happens before."""
        return max(self._look_at, self._not_before) - self._clock.now()

    @property
    def is_resting(self) -> bool:
        """Whether nothing wakes it now."""
        return self._clock.now() < self._not_before

    def is_due(self, signals: Sequence[Signal], *, has_news: bool) -> bool:
        """Whether to wake for these. has_news: a change did not come off."""
        keys = {signal.key for signal in signals}
        fresh = keys - self._told
        self._told &= keys
        now = self._clock.now()
        if self.is_resting:
            return False
        if fresh or has_news:
            return True
        if now < self._look_at:
            return False
        self._look_at = now + self._watch.look_s
        return bool(signals)

    def woke(self, signals: Sequence[Signal]) -> None:
        """The model was told these, and has decided."""
        self._told |= {signal.key for signal in signals}
        self._rest_s = FIRST_REST_S
        self._pause(self._watch.rest_s)

    def failed(self, *, retry_after_s: float | None) -> float:
        """The model did not answer: it is told later. Returns for how long it is left alone."""
        rest_s = max(self._rest_s, retry_after_s or 0.0)
        self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
        self._pause(rest_s)
        return rest_s

    def sleep(self, duration_s: float) -> None:
        """Let nothing wake it for so long."""
        self._pause(duration_s)

    def _pause(self, duration_s: float) -> None:
        now = self._clock.now()
        self._not_before = now + duration_s
        self._look_at = now + max(self._watch.look_s, duration_s)
