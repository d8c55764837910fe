"""Splits a group into the trajectories of each policy."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from astraflow.contract.batches import Row, Rows, stretches
from astraflow.contract.ids import FlowId, GroupId, PolicyId, Version
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.trajectories import NO_VERSION, Trajectories, base_role_of, common_length


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedGroup:
    """One policy's trajectories of one group. Never split, never empty."""

    id: GroupId
    flow: FlowId
    policy: PolicyId
    rows: Sequence[Row]
    oldest_version: Version = field(init=False)
    """Oldest version of the weights at the begin of a row; it decides how stale the group is."""
    _distinct_tokens: int = field(default=0, init=False, repr=False)
    """0 until they were counted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", Rows.of(self.rows))
        oldest = min(version for part in self.parts for version in part.oldest_versions)
        object.__setattr__(self, "oldest_version", Version(oldest))

    @property
    def parts(self) -> Sequence[Trajectories]:
        """Trajectories of the rows, in columns."""
        return Rows.of(self.rows).parts

    @property
    def distinct_tokens(self) -> int:
        """Tokens of the rows, where a beginning that several rows share counts once. Counted once."""
        if not self._distinct_tokens:
            rows = sorted((row for part in self.parts for row in part.each_tokens()), key=lambda row: row.tobytes())
            shared = sum(common_length(row, following) for row, following in pairwise(rows))
            object.__setattr__(self, "_distinct_tokens", sum(map(len, rows)) - shared)
        return self._distinct_tokens

    def forget_calls(self) -> None:
        """Releases the recorded calls of agent programs, which no trainer reads and which take the most memory."""
        for part in self.parts:
            part.forget_calls()

    def rewards(self) -> tuple[float, ...]:
        """Returns one reward per row."""
        return tuple([reward for part in self.parts for reward in part.rewards])

    def role_rewards(self) -> dict[str, list[float]]:
        """Returns the rewards of the rows, by role without the suffix of later attempts; all of one role without roles.

        Rewards of different roles have different levels, so their differences are no signal.
        """
        rewards: dict[str, list[float]] = {}
        for part in self.parts:
            for role, reward in zip(part.roles(), part.rewards, strict=True):
                rewards.setdefault(base_role_of(role), []).append(reward)
        return rewards


def route(group: Group) -> dict[PolicyId, RoutedGroup]:
    """Splits a group by policy. Failed episodes and trajectories without model-written tokens are left out."""
    episodes = [episode for episode in group.episodes if episode.failure is None]
    parts = stretches(Trajectories.of(episode.trajectories) for episode in episodes)
    rows = Rows(
        groups=[group.id] * sum(map(len, parts)),
        tasks=[episode.task for episode in episodes for _ in range(len(episode.trajectories))],
        nodes=[episode.node for episode in episodes for _ in range(len(episode.trajectories))],
        parts=parts,
    )
    written = [
        policy if version != NO_VERSION else None
        for part in parts
        for policy, version in zip(part.policies, part.oldest_versions, strict=True)
    ]
    policies = [policy for policy in dict.fromkeys(written) if policy is not None]
    return {
        policy: RoutedGroup(
            id=group.id,
            flow=group.flow,
            policy=policy,
            rows=rows if len(policies) == 1 and None not in written else rows.where([own == policy for own in written]),
        )
        for policy in policies
    }
