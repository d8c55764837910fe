"""The port of samplers: the data algorithm at the batch."""

from collections.abc import Sequence
from typing import Protocol

from astraflow.contract.ids import Version
from astraflow.dataflow.serving.buffer import Buffered


class Sampler(Protocol):
    """Chooses the groups of a batch. Built by `samplers.build(spec)`."""

    def sample(self, candidates: Sequence[Buffered], count: int, version: Version) -> list[Buffered]:
        """`count` of the candidates, which are all admissible at `version` and at least that many."""

    def metrics(self) -> dict[str, float]:
        """Its own figures for the report."""
