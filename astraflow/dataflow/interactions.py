"""Endings and reward terms of rollouts: for the report of a flow, and as metrics of a step."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from astraflow.contract.ids import FlowId
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.training_metrics import ENDING_PREFIX, MAX_REWARD_TERMS, REWARD_TERM_PREFIX
from astraflow.dataflow.activity import Window


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
        """Returns the mean of each term of the flow that has values."""
        means = {name: window.mean(now=now) for name, window in sorted(self._windows[flow].items())}
        return {name: mean for name, mean in means.items() if mean is not None}
