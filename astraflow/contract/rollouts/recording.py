"""Columns of tokens that an algorithm needs, and the shape of a mixture whose experts engines record."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNeeds:
    """Columns that the algorithm of a policy needs of every token that the policy writes (`TokenColumn`)."""

    top_tokens: int = 0
    """Most likely tokens that are recorded with their logprobs. Count; 0: none."""
    experts: bool = False
    """Experts of a mixture that computed each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Shape of a mixture of experts."""

    layers: int
    """Layers of the model, those without experts included. Count."""
    chosen: int
    """Experts that compute a token in a layer. Count."""
    experts: int
    """Experts of a layer among which its router chooses. Count."""

    @property
    def number_bytes(self) -> int:
        """Bytes of the number of an expert."""
        return 1 if self.experts <= 2**8 else 2

    @property
    def width(self) -> int:
        """Bytes of a token in the column `TokenColumn.EXPERTS`."""
        return self.layers * self.chosen * self.number_bytes
