"""Interface of corrections, and the data that they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Level: TypeAlias = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMismatch:
    """Log ratios of a micro-batch that holds all tokens of its rows. All fields but `rows` are `[tokens]`, no gradient.

    Tokens without recorded logprob have log ratio 0 and are excluded from means.
    """

    log_ratios: Tensor
    """Log of trainer over engine, for the same weights as far as they are known: the proximal policy, or without its
    pass the current policy, over the behaviour policy."""
    current_log_ratios: Tensor
    """Log of current over behaviour policy: mismatch and age together."""
    advantages: Tensor
    is_valid: Tensor
    """bool: the logprob recorded at sampling is a finite number."""
    row_indices: Tensor
    rows: int
    """Rows of the batch."""

    def row_sums(self, values: Tensor) -> Tensor:
        """Returns the sum over the valid tokens of each token's row: `[tokens]`."""
        sums = values.new_zeros(self.rows).index_add(0, self.row_indices, values.where(self.is_valid, 0.0))
        return sums[self.row_indices]

    def row_means(self, values: Tensor) -> Tensor:
        """Returns the mean over the valid tokens of each token's row: `[tokens]`; 0 without any."""
        return self.row_sums(values) / self.row_sums(self.is_valid.to(values.dtype)).clamp(min=1)


class Correction(Protocol):
    """Factor of each token's objective. Built by `corrections.build(spec)`.

    Cut tokens stay in the denominators of the aggregation, so that a cut token is a token without gain.
    """

    @property
    def level(self) -> Level:
        """`sequence` when all tokens of a trajectory have the same factor, as far as their advantages agree in sign."""

    @property
    def is_weight(self) -> bool:
        """True for factors that contain the ratio itself, False for masks of 0 and 1."""

    @property
    def cap(self) -> float | None:
        """Value that larger factors are reduced to; None when none are."""

    def __call__(self, mismatch: TokenMismatch) -> Tensor:
        """Returns the factors `[tokens]`, without gradient; 0 cuts the token."""
