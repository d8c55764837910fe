"""Interfaces and registries of advantages: estimates of how good each trajectory, or each token, of a batch is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from astraflow.algorithms.tokens import Pass, Ranks, RowData, TokenData
from astraflow.runtime.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor


class Advantage(Protocol):
    """Maps rewards to advantages, or advantages to advantages: instances are applied in the order of the list.

    Built by `advantages.build(spec)`. Computed once for the whole batch, before it is split over minibatches and ranks.
    """

    def __call__(self, values: Tensor, rows: RowData) -> Tensor:
        """Returns `[rows]` of any floating type, 0 where a row is not counted.

        values: float64 `[rows]`, so that sums of equal rewards stay equal; rewards for the first advantage.
        """


class TokenAdvantage(Protocol):
    """Maps the advantages of tokens, at first the advantages of their rows, to other advantages. Built by
    `token_advantages.build(spec)`.

    Instances are applied in the order of the list, after the passes that they need.
    """

    @property
    def needs(self) -> frozenset[Pass]:
        """Forward passes without gradient whose results it reads."""

    def __call__(self, tokens: TokenData, rows: RowData, ranks: Ranks) -> TokenData:
        """Returns the tokens with new advantages (and returns, for a critic). Collective: called on every rank.

        tokens: this rank's share of the whole batch, all minibatches.
        """


_KINDS = ("batch_whitened", "group_centred", "group_relative", "leave_one_out", "maxrl", "overlong_penalty")
_TOKEN_KINDS = ("distillation", "gae", "turn_discount", "turn_returns", "whitened")

advantages: Registry[Advantage] = Registry(
    "advantage", built_in=dict.fromkeys(_KINDS, "astraflow.algorithms.advantages"), heavy=_KINDS
)
token_advantages: Registry[TokenAdvantage] = Registry(
    "token_advantage", built_in=dict.fromkeys(_TOKEN_KINDS, "astraflow.algorithms.token_advantages"), heavy=_TOKEN_KINDS
)
