"""Recent activity per policy: the counts from which rates and means are computed."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.training_metrics import ENDING_PREFIX, MAX_REWARD_TERMS, REWARD_TERM_PREFIX

WINDOW_S = 10.0
"""Period over which rates are computed. Seconds."""


_SLOT_S = 0.1
"""Values of one slot are stored as their number and sum, so that a window costs the same at any rate. Seconds."""


class Window:
    """Values of the last `WINDOW_S` seconds. Callers pass the time, in monotonic seconds."""

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._slots: deque[list[float]] = deque()
        """Index of the slot, number of values, and their sum; oldest first."""

    def add(self, *values: float, now: float) -> None:
        slot = now // _SLOT_S
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append([slot, 0, 0.0])
            self._forget(now)
        self._slots[-1][1] += len(values)
        self._slots[-1][2] += sum(values)

    def rate(self, *, now: float) -> float:
        """Returns values per second; early in a run, over the time since it began."""
        self._forget(now)
        return sum(count for _, count, _ in self._slots) / max(1.0, min(WINDOW_S, now - self._began_at))

    def mean(self, *, now: float) -> float | None:
        """Returns the mean value, None without values."""
        self._forget(now)
        count = sum(count for _, count, _ in self._slots)
        return sum(total for _, _, total in self._slots) / count if count else None

    def _forget(self, now: float) -> None:
        oldest = (now - WINDOW_S) // _SLOT_S
        while self._slots and self._slots[0][0] < oldest:
            self._slots.popleft()


@dataclass(slots=True)
class PolicyActivity:
    """Windows of one policy."""

    began_at: float
    produced: Window = field(init=False)
    """Admitted groups."""
    consumed: Window = field(init=False)
    """Trained groups."""
    rewards: Window = field(init=False)
    """Reward of each finished rollout, before filters."""

    def __post_init__(self) -> None:
        self.produced, self.consumed, self.rewards = (Window(self.began_at) for _ in range(3))


class RunActivity:
    """Windows of every policy."""

    def __init__(self, policies: list[PolicyId], *, now: float) -> None:
        self._activity = {policy: PolicyActivity(now) for policy in policies}

    def __getitem__(self, policy: PolicyId) -> PolicyActivity:
        return self._activity[policy]


@dataclass(slots=True)
class StepInteractions:
    """Endings and reward terms of the rollouts of one step."""

    endings: Counter[str] = field(default_factory=Counter)
    _terms: dict[str, list[float]] = field(default_factory=dict)
    """Sum and number of the values of each reward term; the first `MAX_REWARD_TERMS` names."""

    def add(self, trajectory: Trajectory) -> None:
        """Adds a rollout."""
        if trajectory.ending is not None:
            self.endings[trajectory.ending.value] += 1
        for name, value in trajectory.reward_terms.items():
            if name in self._terms or len(self._terms) < MAX_REWARD_TERMS:
                total = self._terms.setdefault(name, [0.0, 0.0])
                total[0] += value
                total[1] += 1

    def metrics(self) -> dict[str, float]:
        """Returns the share of each ending among the rollouts that have one, and the mean of each reward term."""
        total = self.endings.total()
        shares = {f"{ENDING_PREFIX}{ending}": count / total for ending, count in sorted(self.endings.items())}
        means = {f"{REWARD_TERM_PREFIX}{name}": value / count for name, (value, count) in sorted(self._terms.items())}
        return {**shares, **means}


class TermActivity:
    """Reward terms of each flow over the last seconds."""

    def __init__(self, flows: Iterable[FlowId], *, now: float) -> None:
        self._began_at = now
        self._windows: dict[FlowId, dict[str, Window]] = {flow: {} for flow in flows}

    def add(self, flow: FlowId, trajectory: Trajectory, *, now: float) -> None:
        """Adds the terms of a rollout; names beyond the first `MAX_REWARD_TERMS` of the flow are left out."""
        windows = self._windows[flow]
        for name, value in trajectory.reward_terms.items():
            if name not in windows and len(windows) < MAX_REWARD_TERMS:
                windows[name] = Window(self._began_at)
            if name in windows:
                windows[name].add(value, now=now)

    def means(self, flow: FlowId, *, now: float) -> dict[str, float]:
        means = {name: window.mean(now=now) for name, window in sorted(self._windows[flow].items())}
        return {name: mean for name, mean in means.items() if mean is not None}
