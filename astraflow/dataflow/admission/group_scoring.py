"""Group rewards of one flow: which groups wait for them, and the rewards of a group after its comparison."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import GroupId, PolicyId
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.trajectories import Episode, Trajectories, Trajectory
from astraflow.dataflow.admission.limits import ResultLimits, reward_defect
from astraflow.dataflow.config import GroupRewardConfig
from astraflow.rewards import group_rewards
from astraflow.rewards.base import GroupMember

GROUP_REWARD_FAILED = "group_reward_failed"
"""Reason of a group whose group reward failed at every attempt."""

TERM = "group"
"""Name of the score among the reward terms of a trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Location:
    episode: int
    trajectory: int


class GroupScoring:
    """Asks the group reward of a flow.

    `waiting` holds the groups whose members all have a result, in order. Their number is bounded by the staleness gate,
    which counts them as issued.
    """

    def __init__(self, config: GroupRewardConfig, *, limits: ResultLimits) -> None:
        self.config = config
        self.reward = group_rewards.build(config.reward)
        self.waiting: asyncio.Queue[GroupId] = asyncio.Queue()
        self.counts: Counter[str] = Counter(scored=0, failed_attempts=0, dropped=0)
        self._limits = limits

    async def scored(self, group: Group) -> tuple[Episode, ...]:
        """Returns the episodes of a group with their new rewards.

        Raises: whatever the group reward raises; InvalidInput for scores that cannot be used; TimeoutError.
        """
        episodes = [list(episode.trajectories) for episode in group.episodes]
        async with asyncio.timeout(self.config.timeout_s):
            for locations in _compared(group, {PolicyId(policy) for policy in self.config.policies}):
                trajectories = [
                    group.episodes[location.episode].trajectories[location.trajectory] for location in locations
                ]
                scores = await self.reward.scores(group.prompt, [_member(item) for item in trajectories])
                self._check(scores, len(locations))
                for location, trajectory, score in zip(locations, trajectories, scores, strict=True):
                    episodes[location.episode][location.trajectory] = self._rescored(trajectory, float(score))
        return tuple(
            replace(episode, trajectories=Trajectories.of(trajectories))
            for episode, trajectories in zip(group.episodes, episodes, strict=True)
        )

    def metrics(self) -> dict[str, float]:
        """Returns counts for the report."""
        return {f"group_reward.{name}": float(count) for name, count in (*self.counts.items(), self._waiting)}

    @property
    def _waiting(self) -> tuple[str, int]:
        return "waiting", self.waiting.qsize()

    def _check(self, scores: Sequence[float], members: int) -> None:
        if len(scores) != members or not all(map(math.isfinite, scores)):
            raise InvalidInput(
                f"cannot use the scores {list(scores)[:8]} of a group reward: {members} finite numbers are needed; "
                "return one for each member",
                code="group_reward.invalid_scores",
            )

    def _rescored(self, trajectory: Trajectory, score: float) -> Trajectory:
        factor = self.config.base_weight
        reward = factor * trajectory.reward + self.config.weight * score
        rescored = replace(
            trajectory,
            reward=reward,
            turn_rewards=tuple(factor * turn for turn in trajectory.turn_rewards),
            reward_terms={**trajectory.reward_terms, TERM: score},
        )
        if (defect := reward_defect(rescored, self._limits)) is not None:
            raise InvalidInput(
                f"cannot use the rewards after the group reward: {defect.cause}", code="group_reward.out_of_range"
            )
        return rescored


def without_unsampled_texts(episodes: Sequence[Episode]) -> tuple[Episode, ...]:
    """Returns the episodes without the texts that were attached only for the comparison.

    Nodes attach the durations of the spans to the texts of sampled groups alone.
    """
    return tuple(
        replace(episode, trajectories=Trajectories.of(list(map(_without_unsampled_text, episode.trajectories))))
        for episode in episodes
    )


def _without_unsampled_text(trajectory: Trajectory) -> Trajectory:
    if trajectory.span_s:
        return trajectory
    return replace(trajectory, prompt_text="", completion_text="", text_ends=(), token_ends=())


def _compared(group: Group, policies: set[PolicyId]) -> list[list[_Location]]:
    """Returns the trajectories that are compared with each other: those of one policy and role.

    A trajectory without a role has its position in the episode as its role.
    """
    compared: dict[tuple[PolicyId, str], list[_Location]] = {}
    for index, episode in enumerate(group.episodes):
        for position, trajectory in enumerate(episode.trajectories if episode.failure is None else ()):
            if (not policies or trajectory.policy in policies) and trajectory.model_tokens:
                slot = (trajectory.policy, trajectory.role or str(position))
                compared.setdefault(slot, []).append(_Location(episode=index, trajectory=position))
    return list(compared.values())


def _member(trajectory: Trajectory) -> GroupMember:
    return GroupMember(
        text=trajectory.completion_text,
        reward=trajectory.reward,
        answer=trajectory.answer,
        is_truncated=trajectory.is_truncated,
    )
