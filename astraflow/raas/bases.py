"""The weights that low-rank adapters are added to, had once for all their versions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import PolicyId, Version
from astraflow.weights.adapters import adapter_facts
from astraflow.weights.puller import Pulled
from astraflow.weights.tensors import VerifiedWeights


class Source(Protocol):
    """Where a version comes from; see `astraflow.weights.puller.Puller`."""

    async def exactly(self, version: Version) -> Pulled:
        """That version, once it is published."""


class Bases:
    """Gives adapters what they are added to; other versions pass as they are. Keeps the last base it fetched."""

    def __init__(self, source: Callable[[PolicyId], Source]) -> None:
        """source: makes a source that has nothing committed yet."""
        self._source = source
        self._latest: VerifiedWeights | None = None

    async def completed(self, weights: VerifiedWeights) -> VerifiedWeights:
        """The weights, with their base if they are adapters. Waits until that is published.

        Raises: CorruptData when the base is not the one they were trained on; as `Puller.exactly`.
        """
        facts = adapter_facts(weights.manifest)
        if facts is None:
            return weights
        if self._latest is None or self._latest.manifest.root_hash != facts.base_root:
            self._latest = None  # its memory is needed for the next one
            self._latest = (await self._source(facts.base).exactly(facts.base_version)).weights
        if self._latest.manifest.root_hash != facts.base_root:
            raise CorruptData(
                f"version {weights.manifest.version} of {weights.manifest.policy} holds adapters of other weights than "
                f"version {facts.base_version} of {facts.base}"
            )
        return replace(weights, adapts=self._latest)
