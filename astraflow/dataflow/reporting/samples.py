"""Trajectories to look at."""

from collections.abc import Callable
from dataclasses import replace

from astraflow.contract.ids import GroupId, PolicyId
from astraflow.contract.reports import SampledTrajectory
from astraflow.contract.trajectories import Episode, Group, Trajectory


class Samples:
    """The latest trajectories whose node attached their text, in memory; whole groups, with their fate."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._samples: dict[int, SampledTrajectory] = {}
        self._of_group: dict[tuple[PolicyId, GroupId], list[int]] = {}
        self._last = 0

    def add(self, group: Group, fates: Callable[[PolicyId], str], *, at: float) -> None:
        """Keep those of a group's trajectories that have a text. `fates` tells what became of each policy's share."""
        reference = str(group.prompt.fields.get("answer", ""))
        for episode in group.episodes:
            for trajectory in episode.trajectories:
                if trajectory.prompt_text or trajectory.completion_text:
                    fate = fates(trajectory.policy)
                    self._keep(_sample(self._last + 1, group, episode, trajectory, fate, reference, at))
        self._trim()

    def mark(self, policy: PolicyId, group: GroupId, *, fate: str, step: int | None) -> None:
        """What became of a group later."""
        for ordinal in self._of_group.get((policy, group), ()):
            self._samples[ordinal] = replace(self._samples[ordinal], fate=fate, step=step)

    def page(
        self, *, policy: str, step: int | None, group: str, before: int | None, limit: int
    ) -> list[SampledTrajectory]:
        """Newest first. Empty `policy` or `group` and None for `step` match all; `before` is an ordinal."""
        found: list[SampledTrajectory] = []
        for ordinal in reversed(self._samples):
            sample = self._samples[ordinal]
            if before is not None and ordinal >= before:
                continue
            if policy in ("", sample.policy) and group in ("", sample.group) and step in (None, sample.step):
                found.append(sample)
            if len(found) == limit:
                break
        return found

    def _keep(self, sample: SampledTrajectory) -> None:
        self._last = sample.ordinal
        self._samples[sample.ordinal] = sample
        self._of_group.setdefault((sample.policy, sample.group), []).append(sample.ordinal)

    def _trim(self) -> None:
        while len(self._samples) > self._limit:
            oldest = self._samples.pop(next(iter(self._samples)))
            self._of_group.pop((oldest.policy, oldest.group), None)


def _sample(
    ordinal: int, group: Group, episode: Episode, trajectory: Trajectory, fate: str, reference: str, at: float
) -> SampledTrajectory:
    return SampledTrajectory(
        ordinal=ordinal,
        group=group.id,
        task=episode.task,
        flow=group.flow,
        policy=trajectory.policy,
        node=episode.node,
        at=at,
        step=None,
        fate=fate,
        reward=trajectory.reward,
        prompt_text=trajectory.prompt_text,
        completion_text=trajectory.completion_text,
        reference_text=reference,
        tokens=len(trajectory.tokens),
        model_tokens=trajectory.model_tokens,
        spans=trajectory.spans,
        is_truncated=trajectory.is_truncated,
    )
