"""Metrics of a batch by role: how each part of a workflow with several roles does."""

import re
from collections.abc import Iterable

from astraflow.contract.rollouts.trajectories import Trajectory

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
