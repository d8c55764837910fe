"""Distillation over the teacher's most likely tokens, without rewards (GKD, arXiv:2306.13649)."""

from typing import Any

from pydantic import Field

from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import PolicyOptions
from astraflow.algorithms.losses.policy_gradient import Objective, PolicyGradient, PolicyTokens


class DistillationOptions(PolicyOptions):
    """Divergence from the teacher, averaging and penalties."""

    teacher_coefficient: float = Field(default=1.0, gt=0)
    """Weight of the divergence from the teacher."""


@losses.register("distillation", options=DistillationOptions)
class Distillation(PolicyGradient[DistillationOptions]):
    """Divergence from a teacher on the policy's own answers; their rewards count for nothing.

    Other losses with `teacher_coefficient` add the same to their own objective.
    Formula: D(teacher, policy) over the teacher's most likely tokens and the rest of the vocabulary as one.
    Source: arXiv:2306.13649.
    """

    def objective(self, tokens: PolicyTokens, _state: Any) -> Objective:
        """Returns no gain."""
        return Objective(gain=0 * tokens.logprobs, is_clipped=tokens.mismatch.is_valid.new_zeros(len(tokens.logprobs)))
