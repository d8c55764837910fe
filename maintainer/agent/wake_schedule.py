"""Decides when to wake: a new signal, an active signal at the next check, or a change that missed its target."""

from collections.abc import Sequence

from astraflow.runtime.clock import Clock
from maintainer.agent.config import WatchConfig
from maintainer.agent.observation.signals import Signal

FIRST_BACKOFF_S = 30.0
MAX_BACKOFF_S = 1800.0


class WakeSchedule:
    """Signals that the model has seen, and the time until which it is not called."""

    def __init__(self, watch: WatchConfig, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock
        self._known_signals: set[tuple[str, str, str]] = set()
        self._next_check_at = clock.now() + watch.check_interval_s
        self._paused_until = clock.now()
        self._backoff_s = FIRST_BACKOFF_S

    @property
    def next_check_in_s(self) -> float:
        """Time to the next check without a new signal, seconds."""
        return max(self._next_check_at, self._paused_until) - self._clock.now()

    @property
    def is_paused(self) -> bool:
        """True while no signal may wake the maintainer."""
        return self._clock.now() < self._paused_until

    def is_due(self, signals: Sequence[Signal], *, has_failed_changes: bool) -> bool:
        """Decides whether these signals start a wake. has_failed_changes: a change missed its target."""
        keys = {signal.key for signal in signals}
        new_keys = keys - self._known_signals
        self._known_signals &= keys
        now = self._clock.now()
        if self.is_paused:
            return False
        if new_keys or has_failed_changes:
            return True
        if now < self._next_check_at:
            return False
        self._next_check_at = now + self._watch.check_interval_s
        return bool(signals)

    def record_wake(self, signals: Sequence[Signal]) -> None:
        """Marks the signals as seen by the model and resets the backoff."""
        self._known_signals |= {signal.key for signal in signals}
        self._backoff_s = FIRST_BACKOFF_S
        self._pause(self._watch.wake_pause_s)

    def record_failure(self, *, retry_after_s: float | None) -> float:
        """Starts a backoff after a failed call; returns its duration, seconds."""
        rest_s = max(self._backoff_s, retry_after_s or 0.0)
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        self._pause(rest_s)
        return rest_s

    def pause(self, duration_s: float) -> None:
        """Suppresses wakes for `duration_s`."""
        self._pause(duration_s)

    def _pause(self, duration_s: float) -> None:
        now = self._clock.now()
        self._paused_until = now + duration_s
        self._next_check_at = now + max(self._watch.check_interval_s, duration_s)
