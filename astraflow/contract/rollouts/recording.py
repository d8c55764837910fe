"""Columns of tokens that an algorithm needs, and the shape of a mixture whose experts engines record."""

from dataclasses import dataclass
from math import comb
from typing import Final

_MAX_BITS: Final = 63


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

    def set_bits(self, size: int) -> int:
        """Returns the bits of the number of a set of so many experts. More numbers than sets have these bits."""
        return comb(self.experts, size).bit_length()

    @property
    def set_sizes(self) -> tuple[int, ...]:
        """Sizes of the sets that are numbered in a layer: of one, or of equal parts whose numbers have 63 bits."""
        parts = 1
        while self.set_bits(-(-self.chosen // parts)) > _MAX_BITS:
            parts += 1
        return tuple(self.chosen // parts + (part < self.chosen % parts) for part in range(parts))

    @property
    def width(self) -> int:
        """Bytes of a token in the column `TokenColumn.EXPERTS`."""
        return -(-self.layers * sum(map(self.set_bits, self.set_sizes)) // 8)
