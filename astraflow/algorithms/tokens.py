"""Data of an optimizer batch that advantages, corrections and losses read: rows, tokens, statistics, ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, cast

from astraflow.contract.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor


class Pass(Enum):
    """Forward pass without gradient that a loss needs before the training pass; none is computed unless needed."""

    CURRENT = "current"
    """Logprobs under the weights immediately before this optimizer step, of the whole optimizer batch."""
    PROXIMAL = "proximal"
    """Logprobs under the weights at the start of the batch, before its first optimizer step."""
    REFERENCE = "reference"
    """Logprobs under a frozen copy of the initial weights."""
    TEACHER = "teacher"
    """Logprobs under a teacher's weights."""
    VALUES = "values"
    """Values of the critic at the start of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowData:
    """Facts of the trajectories of a whole batch, on every rank. All fields are `[rows]`."""

    groups: Tensor
    """int64, from 0. Groups may differ in size: members that are missing have no row."""
    slots: Tensor
    """int64: number of the trajectory among those of this policy in its episode, from 0. Roles of a workflow, such as
    planner and solver, have different slots when one policy plays both."""
    is_counted: Tensor
    """bool: False rows have no advantage and are excluded from every mean and spread."""
    weights: Tensor
    """float32: weight in means and spreads, so that an episode counts once: 1 divided by the counted rows of the same
    episode and slot, such as the branches of an agent's session; 0 for a row that is not counted."""
    lengths: Tensor
    """int64: model-written tokens."""
    is_truncated: Tensor
    """bool: generation stopped at its length limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenData:
    """Counted model-written tokens of an optimizer batch on this rank, or of one micro-batch. No gradient.

    Fields are `[tokens]` unless they say otherwise. Tokens of a row are adjacent and in order, in one micro-batch.
    Fields of passes are None unless the loss needs the pass.
    """

    row_indices: Tensor
    """int64: row of the token in the batch."""
    turn_indices: Tensor
    """int64: number of the token's turn in its row, from 0. A turn is a stretch of model-written tokens."""
    behaviour_logprobs: Tensor
    """float32: logprobs recorded when the token was sampled, at sampling temperature."""
    is_own_version: Tensor
    """bool: the whole row was sampled with the trainer's version at the start of the batch."""
    advantages: Tensor
    """float32."""
    current_logprobs: Tensor | None = None
    proximal_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    values: Tensor | None = None
    """float32: the critic's value of the state before the token, at the start of the batch."""
    returns: Tensor | None = None
    """float32: target of the critic."""
    turn_rewards: Tensor | None = None
    """float32: reward of the token's turn, 0 in a row without turn rewards; None: no row has any."""
    turn_discounts: Tensor | None = None
    """float32: weight of the rewards after the token's turn, as seen from it; None: 1."""
    top_tokens: Tensor | None = None
    """int64 `[tokens, k]`: most likely tokens of the engine when it sampled, -1: none; None: not recorded."""
    top_logprobs: Tensor | None = None
    """float32 `[tokens, k]`: their logprobs, -inf where there is none."""
    teacher_top_tokens: Tensor | None = None
    """int64 `[tokens, k]`: most likely tokens of the teacher, -1: none; None unless the loss needs them."""
    teacher_top_logprobs: Tensor | None = None
    """float32 `[tokens, k]`: their logprobs, -inf where there is none."""

    def result(self, of: Pass) -> Tensor:
        """Returns the field that the pass fills. Raises: InvalidInput when it is absent, because no part of the
        algorithm requested it."""
        values = self.values if of is Pass.VALUES else getattr(self, f"{of.value}_logprobs")
        if values is None:
            raise InvalidInput(
                f"cannot compute a loss: the pass {of.value!r} has no result; list it in `needs`",
                code="algorithm.pass_missing",
            )
        return cast("Tensor", values)

    def select(self, indices: Tensor) -> TokenData:
        """Returns these tokens; indices: int64 `[n]`."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        selected: dict[str, Any] = {name: value if value is None else value[indices] for name, value in values.items()}
        return TokenData(**selected)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Results of the training pass for the tokens of one micro-batch. All fields are float32 with gradient, most
    `[tokens]`.

    Distributions are at sampling temperature. In the critic's pass, logprobs and entropy are empty.
    """

    logprobs: Tensor
    """Logprobs of the tokens under the weights in training."""
    entropy: Tensor
    """Entropy of the distribution that predicts each token. Nats."""
    values: Tensor | None = None
    """Values of the critic; only in the critic's own pass."""
    top_logprobs: Tensor | None = None
    """`[tokens, k]`: logprobs of `TokenData.top_tokens`, then of `TokenData.teacher_top_tokens`; None without any. In a
    pass that returns `top_tokens`: theirs."""
    top_tokens: Tensor | None = None
    """int64 `[tokens, k]`, without gradient: the most likely tokens; None unless the pack asked for them."""
    balance: Tensor | None = None
    """Scalar: loss for the balance of experts over all tokens of the micro-batch; None unless asked for."""
    replayed_choices: Tensor | None = None
    """int64 `[2]`: replayed experts of all layers that the router would not have chosen, and all replayed ones; None
    without replay."""

    @classmethod
    def of_values(cls, values: Tensor) -> TokenScores:
        """Returns the scores of a critic's pass."""
        return cls(logprobs=values.new_zeros(0), entropy=values.new_zeros(0), values=values)

    def select(self, indices: Tensor) -> TokenScores:
        """Returns the scores of these tokens, int64 `[n]`, any of them several times."""
        if self.values is not None:
            return TokenScores.of_values(self.values[indices])
        return TokenScores(
            logprobs=self.logprobs[indices],
            entropy=self.entropy[indices],
            top_logprobs=None if self.top_logprobs is None else self.top_logprobs[indices],
            top_tokens=None if self.top_tokens is None else self.top_tokens[indices],
            balance=self.balance,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """Statistics of the whole optimizer batch, over all micro-batches and ranks, computed before the first loss.

    Every micro-batch is normalised by them, so the split into micro-batches and ranks does not change the gradient.
    """

    tokens: int
    """Model-written tokens that are counted."""
    trajectories: int
    """Counted trajectories."""
    lengths: Tensor
    """int64 `[rows]`: counted tokens of each row of the batch."""
    rows: RowData
    """Rows of the whole batch: losses that compare rows need their groups and slots."""


class Ranks(Protocol):
    """Collective operations over the ranks that share an optimizer batch; every rank calls them in the same order."""

    def sum(self, values: Tensor) -> Tensor:
        """Returns the elementwise sum over all ranks."""

    def gather(self, values: Tensor) -> Tensor:
        """Returns the concatenation of one-dimensional tensors, which may differ in length, in rank order."""


class SingleRank:
    """Ranks of a trainer with one process."""

    def sum(self, values: Tensor) -> Tensor:
        return values

    def gather(self, values: Tensor) -> Tensor:
        return values
