"""Batching of a trainer: how it computes its passes, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingFacts:
    """How a trainer computes its passes, as its check at the start has found."""

    batching: str
    """`packed`, `tree` or `rows`."""
    largest_difference: float
    """Difference between logprobs in a pack and those of the same sequence alone. Nats."""
    reasons: str = ""
    """Why not a faster batching; empty for the fastest."""
    costs: str = ""
    """Cost compared with the fastest batching, as a text; empty for the fastest."""
    precision: str = ""
    """Element type of the weights in the passes, such as `bfloat16`; empty when unknown."""

    @property
    def sentence(self) -> str:
        """Returns batching, reasons and costs as one text."""
        reasons = f" ({self.reasons})" if self.reasons else ""
        costs = f"; costs: {self.costs}" if self.costs else ""
        return f"{self.batching}{reasons}{costs}"
