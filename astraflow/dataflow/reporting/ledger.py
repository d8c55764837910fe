"""What happened lately, per policy: the counts that rates and means are made of."""

from collections import deque
from dataclasses import dataclass, field

from astraflow.contract.ids import PolicyId

WINDOW_S = 10.0
"""Rates look back this far."""


class Window:
    """Values of the last `WINDOW_S` seconds. Time is handed in, in monotonic seconds."""

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._values: deque[tuple[float, float]] = deque()

    def add(self, value: float, *, now: float) -> None:
        """Note a value."""
        self._values.append((now, value))
        self._forget(now)

    def rate(self, *, now: float) -> float:
        """Values per second; early in a run, over the time it has lasted."""
        self._forget(now)
        return len(self._values) / max(1.0, min(WINDOW_S, now - self._began_at))

    def mean(self, *, now: float) -> float | None:
        """Mean value; None without any."""
        self._forget(now)
        return sum(value for _, value in self._values) / len(self._values) if self._values else None

    def _forget(self, now: float) -> None:
        while self._values and self._values[0][0] < now - WINDOW_S:
            self._values.popleft()


@dataclass(slots=True)
class Activity:
    """One policy's windows."""

    began_at: float
    produced: Window = field(init=False)
    """Admitted groups."""
    consumed: Window = field(init=False)
    """Trained groups."""
    rewards: Window = field(init=False)
    """Reward of each finished rollout, before any filter."""

    def __post_init__(self) -> None:
        self.produced, self.consumed, self.rewards = (Window(self.began_at) for _ in range(3))


class Ledger:
    """Windows of every policy."""

    def __init__(self, policies: list[PolicyId], *, now: float) -> None:
        self._activity = {policy: Activity(now) for policy in policies}

    def __getitem__(self, policy: PolicyId) -> Activity:
        return self._activity[policy]
