"""Refusal of episodes that would be trained on samples of another distribution than the trainer can compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.spans import Author
from astraflow.contract.rollouts.trajectories import Trajectory

_COMPARED_TOKENS = 16
"""First tokens of a generation by which it is recognised in a trajectory, with their logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingCheck:
    """Samples of one episode that must not be trained.

    The trainer computes logprobs at the recorded temperature, of the whole distribution or of the recorded kept sets. A
    workflow may sample otherwise for its own purposes, so only what is in a trajectory counts.
    """

    temperatures: Mapping[PolicyId, float]
    """Temperature of each trained policy's algorithm; other policies may be sampled in any way."""
    _other: list[tuple[PolicyId, Sampling, Generation]] = field(default_factory=list)

    def record(self, policy: PolicyId, sampling: Sampling, generation: Generation) -> None:
        """Remembers a generation that was sampled from a distribution that is not recorded."""
        is_recorded = sampling.is_full_distribution or generation.has_support
        if policy in self.temperatures and not is_recorded and len(generation.tokens):
            self._other.append((policy, sampling, generation))

    def check(self, trajectories: Sequence[Trajectory]) -> None:
        """Checks the trajectories of the episode. Raises: RolloutFailed at the boundary `workflow`."""
        for policy, sampling, generation in self._other:
            if any(trajectory.policy == policy and _contains(trajectory, generation) for trajectory in trajectories):
                raise RolloutFailed(
                    f"cannot train on the episode: the workflow sampled {policy!r} {_described(sampling)}, and the "
                    "engine recorded no kept sets, over which the trainer would renormalise; use an engine that "
                    "records them with a top_k of at most 256, or leave these tokens out of the trajectory",
                    boundary=Boundary.WORKFLOW,
                    code="rollout.other_distribution",
                )


def _contains(trajectory: Trajectory, generation: Generation) -> bool:
    """Returns whether a model-written span of the trajectory begins with the first tokens of the generation."""
    count = min(len(generation.tokens), _COMPARED_TOKENS)
    begin = written = 0
    for span in trajectory.spans:
        if span.author is Author.MODEL:
            tokens, logprobs = trajectory.tokens[begin : begin + count], trajectory.logprobs[written : written + count]
            is_same = np.array_equal(tokens, generation.tokens[:count])
            if is_same and np.array_equal(logprobs, generation.logprobs[:count]):
                return True
            written += span.length
        begin += span.length
    return False


def _described(sampling: Sampling) -> str:
    parts = [f"temperature {sampling.temperature:g}"]
    parts += [f"{name} {value:g}" for name, value in (("top_k", sampling.top_k), ("min_p", sampling.min_p)) if value]
    parts += [f"top_p {sampling.top_p:g}"] if sampling.top_p != 1 else []
    parts += ["a JSON schema"] if sampling.json_schema else []
    parts += ["a regular expression"] if sampling.regex else []
    return f"with {', '.join(parts)}"
