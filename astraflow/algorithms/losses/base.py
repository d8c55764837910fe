"""The port of losses, and how the tokens of a batch are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Aggregation: TypeAlias = Literal["token_mean", "sequence_mean", "fixed_length"]
"""`token_mean`: every token has the same weight (DAPO, arXiv:2503.14476). `sequence_mean`: every trajectory has, its
tokens share it (GRPO, arXiv:2402.03300). `fixed_length`: every token has the weight it would have in a trajectory of
that length, so that long wrong answers are not spared (Dr. GRPO, arXiv:2503.20783)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """What is known about the whole optimizer batch, over all micro-batches, before the first loss is computed.

    Every micro-batch is normalised by these, so that how a batch is cut does not change its gradient.
    """

    tokens: int
    """Model-written tokens that count."""
    trajectories: int
    lengths: Tensor
    """int64 `[trajectories]`: counted tokens of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """Tokens of one micro-batch, all `[tokens]`: model-written and counted."""

    logprobs: Tensor
    """Under the weights being trained, with their gradient."""
    behaviour: Tensor
    """As recorded when the token was written."""
    advantages: Tensor
    owners: Tensor
    """Which trajectory of the batch each belongs to, int64."""
    reference: Tensor | None = None
    """Under the frozen reference; given when the loss asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPart:
    """One micro-batch's share: summed over all of them, `loss` is the batch's loss and `sums / tokens` its metrics."""

    loss: Tensor
    sums: Mapping[str, Tensor]
    """Name of a metric -> its sum over these tokens."""


class Loss(Protocol):
    """Built by `losses.build(spec)`."""

    @property
    def needs_reference(self) -> bool:
        """Whether logprobs of a frozen copy of the first weights are wanted: one more forward."""

    def __call__(self, tokens: LossTokens, batch: BatchFacts) -> LossPart:
        """The share of one micro-batch."""


def token_weights(owners: Tensor, batch: BatchFacts, *, aggregation: Aggregation, fixed_length: int) -> Tensor:
    """How much each token counts: `[tokens]`; over a whole batch they sum to 1, except for `fixed_length`."""
    lengths = batch.lengths[owners]
    match aggregation:
        case "token_mean":
            return (lengths * 0 + 1) / max(batch.tokens, 1)
        case "sequence_mean":
            return 1 / (lengths * max(batch.trajectories, 1))
        case "fixed_length":
            return (lengths * 0 + 1) / (fixed_length * max(batch.trajectories, 1))
