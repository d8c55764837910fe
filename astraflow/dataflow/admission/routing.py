"""Splits a group into the trajectories of each policy."""

from dataclasses import dataclass, replace

from astraflow.contract.batches import Row
from astraflow.contract.groups import Group
from astraflow.contract.ids import FlowId, GroupId, PolicyId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedGroup:
    """One policy's trajectories of one group. Never split, never empty."""

    id: GroupId
    flow: FlowId
    policy: PolicyId
    rows: tuple[Row, ...]

    @property
    def oldest_version(self) -> Version:
        """Oldest version of the weights at the begin of a row; it decides how stale the group is."""
        return min(version for row in self.rows if (version := row.trajectory.oldest_version) is not None)

    def rewards(self) -> tuple[float, ...]:
        """Returns one reward per row."""
        return tuple(row.trajectory.reward for row in self.rows)

    def role_rewards(self) -> dict[str, list[float]]:
        """Returns the rewards of the rows, by role without the suffix of later attempts; all of one role without roles.

        Rewards of different roles have different levels, so their differences are no signal.
        """
        rewards: dict[str, list[float]] = {}
        for row in self.rows:
            rewards.setdefault(row.trajectory.base_role, []).append(row.trajectory.reward)
        return rewards


def route(group: Group) -> dict[PolicyId, RoutedGroup]:
    """Splits a group by policy. Failed episodes and trajectories without model-written tokens are left out, and so are
    the recorded calls of agents, which no trainer reads."""
    rows: dict[PolicyId, list[Row]] = {}
    for episode in group.episodes:
        for trajectory in episode.trajectories if episode.failure is None else ():
            if trajectory.oldest_version is not None:
                trained = replace(trajectory, calls=()) if trajectory.calls else trajectory
                row = Row(group=group.id, task=episode.task, node=episode.node, trajectory=trained)
                rows.setdefault(trajectory.policy, []).append(row)
    return {
        policy: RoutedGroup(id=group.id, flow=group.flow, policy=policy, rows=tuple(policy_rows))
        for policy, policy_rows in rows.items()
    }
