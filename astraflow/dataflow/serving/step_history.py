"""Latest steps of one policy's trainer, for the reports."""

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from astraflow.contract.batches import StepReport
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.values import Json
from astraflow.contract.weight_reports import VersionReport
from astraflow.dataflow.activity import StepInteractions
from astraflow.dataflow.serving.buffer import ServedBatch

RECENT_STEPS = 10
"""Steps over which windowed values are computed. Count."""

REWARD_STEPS = 32
"""Steps whose rewards are retained: more than a trainer makes between two reports. Count."""

PUBLISHED_VERSIONS = 16
"""Published versions that are reported. Count."""


class StepHistory:
    """Figures of the last step, rewards and versions of the latest ones, and rollouts since then."""

    def __init__(self) -> None:
        self.last_step: dict[str, float] = {}
        """Reward, tokens, endings, reward terms and the trainer's metrics of the last step."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_STEPS)
        """Wait and wall seconds and staleness of the latest steps."""
        self.rewards: deque[float] = deque(maxlen=REWARD_STEPS)
        """Mean reward of the rollouts that arrived before each of the latest steps, since the previous step; together
        with the rows of the batch if fewer than these arrived."""
        self.losses: deque[float] = deque(maxlen=REWARD_STEPS)
        """Loss of each of the latest steps; of a step whose loss is not finite, the one before."""
        self.published: deque[VersionReport] = deque(maxlen=PUBLISHED_VERSIONS)
        """Latest published versions, as reported by the trainer."""
        self._rewards_since_step: list[float] = []
        self._interactions_since_step = StepInteractions()
        self._state: Mapping[str, Json] | None = None
        """Result of `state_dict()`; None since a step changed it."""

    def observe_rewards(self, rewards: Iterable[float]) -> None:
        """Records the rewards of rollouts with any outcome."""
        self._rewards_since_step.extend(rewards)

    def observe_interaction(self, trajectory: Trajectory) -> None:
        """Records ending and reward terms of a rollout with any outcome."""
        self._interactions_since_step.add(trajectory)

    def record(self, served: ServedBatch, report: StepReport) -> None:
        """Records the step that trained a batch."""
        parts = served.rows.parts
        rewards = [reward for part in parts for reward in part.rewards]
        details = [trajectory for part in parts for _, trajectory in part.with_details()]
        begun_with = Counter(version for part in parts for version in part.oldest_versions)
        ages: Counter[str] = Counter()
        for version, rows in begun_with.items():
            ages[str(max(0, served.version - version))] += rows
        self.recent.append(
            {
                "wait_s": report.wait_s,
                "wall_s": report.wait_s + report.compute_s + report.publish_s,
                "staleness": dict(ages),
            }
        )
        loss = report.metrics.get("loss", math.nan)
        self.losses.append(loss if math.isfinite(loss) else self.losses[-1] if self.losses else 0.0)
        self.last_step = {
            "wait_s": report.wait_s,
            "compute_s": report.compute_s,
            "publish_s": report.publish_s,
            **report.metrics,
            **role_metrics(details),
            "reward_mean": sum(rewards) / len(rewards),
            "tokens_mean": sum(sum(part.model_tokens) for part in parts) / len(rewards),
        }
        published = VersionReport.from_metrics(report.metrics)
        if published is not None and not (self.published and published.version <= self.published[-1].version):
            self.published.append(published)
        # Batches may be acknowledged in quick succession: a few rollouts that arrived in between say too little.
        if len(self._rewards_since_step) < len(rewards):
            self.observe_rewards(rewards)
            for trajectory in details:
                self.observe_interaction(trajectory)
        self.rewards.append(sum(self._rewards_since_step) / len(self._rewards_since_step))
        self.last_step |= self._interactions_since_step.metrics()
        self._rewards_since_step, self._interactions_since_step = [], StepInteractions()
        self._state = None

    def state_dict(self) -> Mapping[str, Json]:
        """Returns the steps; the same object until the next step, so that the journal need not write it again."""
        if self._state is None:
            self._state = {
                "last_step": dict(self.last_step),
                "recent": list(self.recent),
                "rewards": list(self.rewards),
                "losses": list(self.losses),
                "published": [dict(version.metrics()) for version in self.published],
            }
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the steps."""
        self.last_step = state["last_step"]
        self.recent = deque(state["recent"], maxlen=RECENT_STEPS)
        self.rewards = deque(state["rewards"], maxlen=REWARD_STEPS)
        self.losses = deque(state["losses"], maxlen=REWARD_STEPS)
        reported = (VersionReport.from_metrics(metrics) for metrics in state["published"])
        self.published = deque((version for version in reported if version), maxlen=PUBLISHED_VERSIONS)
        self._state = None


MAX_ROLE_METRICS = 48
"""Metrics of roles in a report; further ones are left out, in the order of the names. Count."""

_FOREIGN = re.compile(r"[^a-z0-9]+")


def role_metrics(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Returns the mean reward of each role, `reward_mean_<role>`, and the mean of each metric that the workflow gave
    its trajectories, `<role>_<metric>`. Empty for trajectories without roles.

    Characters other than letters and digits become underscores: `solver.retry` is in `reward_mean_solver_retry`.
    """
    rewards: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    for trajectory in trajectories:
        if not trajectory.role:
            continue
        role = _metric_name(trajectory.role)
        rewards.setdefault(f"reward_mean_{role}", []).append(trajectory.reward)
        for name, value in trajectory.metrics.items():
            others.setdefault(f"{role}_{_metric_name(name)}", []).append(value)
    named = [*sorted(rewards.items()), *sorted(others.items())][:MAX_ROLE_METRICS]
    return {name: sum(values) / len(values) for name, values in named}


def _metric_name(text: str) -> str:
    return _FOREIGN.sub("_", text.lower()).strip("_")
