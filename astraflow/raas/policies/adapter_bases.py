"""Base weights of low-rank adapters, fetched once for all adapter versions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import PolicyId, Version
from astraflow.weights.adapters import read_adapter_binding
from astraflow.weights.tensors import VerifiedWeights
from astraflow.weights.transfer.puller import PulledVersion


class VersionSource(Protocol):
    """Interface that fetches versions of the weights; see `astraflow.weights.transfer.puller.Puller`."""

    async def pull_exact(self, version: Version) -> PulledVersion:
        """Returns one version once it is published: the base of adapters, or the version of an evaluation."""

    def commit(self, weights: VerifiedWeights) -> None:
        """Records that the engine serves these weights, so that later versions are fetched as deltas to them."""


class AdapterBases:
    """Attaches the base weights to adapters and returns other versions unchanged. Caches the latest base."""

    def __init__(self, source: Callable[[PolicyId], VersionSource]) -> None:
        """source: factory of a source without a committed version."""
        self._source = source
        self._latest: VerifiedWeights | None = None

    async def attach_base(self, weights: VerifiedWeights) -> VerifiedWeights:
        """Returns the weights, with their base if they are adapters. Waits until the base is published.

        Raises: CorruptData when the base is not the base that the adapters were trained on; the errors of
        `Puller.pull_exact`.
        """
        binding = read_adapter_binding(weights.manifest)
        if binding is None:
            return weights
        if self._latest is None or self._latest.manifest.root_hash != binding.base_root:
            self._latest = None  # frees its memory for the next base
            self._latest = (await self._source(binding.base).pull_exact(binding.base_version)).weights
        if self._latest.manifest.root_hash != binding.base_root:
            raise CorruptData(
                f"cannot attach adapters of {weights.manifest.policy!r} version {weights.manifest.version}: they were "
                f"trained on other weights than {binding.base!r} version {binding.base_version}; publish the adapters "
                "again",
                code="weights.adapter_base_mismatch",
            )
        return replace(weights, adapter_base=self._latest)
