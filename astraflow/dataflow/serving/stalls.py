"""Detects trainers that make no step although a batch is ready, so that other policies of a flow need not wait."""

from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.ids import PolicyId
from astraflow.dataflow.serving.stream import Stream

HUNG_FACTOR = 4.0
"""A step has hung when it takes this many times the threshold of a stalled trainer: the first step of a process also
compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallThreshold:
    """Time without a step after which a trainer counts as stalled."""

    usual_steps: float
    """The threshold in usual step durations of the trainer."""
    min_s: float
    """Lower bound of the threshold, and the only one before the first step. Seconds."""

    def limit_s(self, usual_step_s: float) -> float:
        """Returns the threshold in seconds.

        >>> StallThreshold(usual_steps=3, min_s=30).limit_s(usual_step_s=60)
        180
        """
        return max(self.min_s, self.usual_steps * usual_step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StallChange:
    """A trainer stalled, or makes steps again."""

    policy: PolicyId
    is_stalled: bool
    silent_s: float
    """How long a batch has been ready for it. Seconds."""


@dataclass(slots=True, kw_only=True)
class _StreamProgress:
    step: int | None = None
    """The step that a batch is ready for; None while no batch is ready."""
    since: float = 0.0
    is_stalled: bool = False


class StallDetector:
    """Detects stalled trainers. Callers pass the time, in seconds.

        busy ──a batch is ready and no step within the threshold──► stalled ──step──► busy

    A trainer that waits for rollouts is not stalled, and neither is one that is slower than another.
    """

    def __init__(self, streams: Mapping[PolicyId, Stream], thresholds: Mapping[PolicyId, StallThreshold]) -> None:
        self._streams = streams
        self._thresholds = thresholds
        self._progress = {policy: _StreamProgress() for policy in streams}

    def is_stalled(self, policy: PolicyId) -> bool:
        """Returns whether the trainer was stalled at the last check and has completed no step since."""
        progress = self._progress[policy]
        return progress.is_stalled and progress.step == self._streams[policy].counts.steps

    def is_hung(self, policy: PolicyId, step_s: float) -> bool:
        """Returns whether a step that ran for so long would not have ended; False before the first step of the run."""
        usual_step_s = self._streams[policy].usual_step_s
        return usual_step_s > 0 and step_s > HUNG_FACTOR * self._thresholds[policy].limit_s(usual_step_s)

    def check(self, *, now: float) -> list[StallChange]:
        """Checks for how long each trainer has completed no step; returns the changes."""
        return [stall for policy in self._streams if (stall := self._check(policy, now)) is not None]

    def _check(self, policy: PolicyId, now: float) -> StallChange | None:
        stream, progress = self._streams[policy], self._progress[policy]
        step = stream.counts.steps if stream.has_batch else None
        if step is None or step != progress.step:
            self._progress[policy] = _StreamProgress(step=step, since=now)
            return StallChange(policy=policy, is_stalled=False, silent_s=0.0) if progress.is_stalled else None
        silent_s = now - progress.since
        if progress.is_stalled or silent_s <= self._thresholds[policy].limit_s(stream.usual_step_s):
            return None
        progress.is_stalled = True
        return StallChange(policy=policy, is_stalled=True, silent_s=silent_s)
