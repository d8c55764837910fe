"""Adapters on their base give the logprobs of a plain forward pass with the added weights."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Dtype, Manifest, SharedFile, Transfer
from astraflow.models.causal import named_weights
from astraflow.models.precision import bits_of
from astraflow.raas.engines import engines
from astraflow.raas.policies.adapter_bases import AdapterBases
from astraflow.weights.adapters import DOWN_SUFFIX, UP_SUFFIX, AdapterBinding
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.shared_memory import map_read_only
from astraflow.weights.tensors import SnapshotTensors, VerifiedWeights
from astraflow.weights.transfer.puller import PulledVersion
from tests import make_torch
from tests.raas.policies.test_weight_loop import stats

POLICY, BASE = PolicyId("solver"), PolicyId("solver.base")
RANK, SCALE = 2, 0.75
TEXT = np.tile(np.arange(5, 25, dtype=np.int32), 2)


def adapters_of(model: PreTrainedModel, version: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Returns stem -> A [rank, in] and B [out, rank] of the attention's projections."""
    draws = torch.Generator().manual_seed(version)
    return {
        name.removesuffix(".weight"): (
            torch.randn(RANK, weight.shape[1], generator=draws),
            0.1 * torch.randn(weight.shape[0], RANK, generator=draws),
        )
        for name, weight in named_weights(model).items()
        if ".self_attn." in name and name.endswith("proj.weight")
    }


def tensors_of(pairs: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> SnapshotTensors:
    whole = {stem + DOWN_SUFFIX: down for stem, (down, _) in pairs.items()}
    whole |= {stem + UP_SUFFIX: up for stem, (_, up) in pairs.items()}
    return {name: (Dtype.FLOAT32, tuple(value.shape), bits_of(value, Dtype.FLOAT32)) for name, value in whole.items()}


def with_adapters(version: int) -> PreTrainedModel:
    """Adds the adapters to the weights in the slow, obvious way."""
    model = make_torch.model()
    with torch.no_grad():
        for stem, (down, up) in adapters_of(model, version).items():
            named_weights(model)[f"{stem}.weight"].add_(SCALE * up @ down)
    return model


class Adopting(WeightPlaneClient):
    """Store on this host that retains published versions in memory."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], VerifiedWeights] = {}

    async def publish(
        self, manifest: Manifest, transfer: Transfer, chunks: Iterable[Chunk], *, shared: SharedFile | None = None
    ) -> bool:
        assert shared is not None
        self.kept[manifest.policy, manifest.version] = VerifiedWeights(manifest=manifest, buffer=map_read_only(shared))
        return True


@dataclass(frozen=True, slots=True)
class Source:
    """The versions of one policy."""

    plane: Adopting
    policy: PolicyId

    async def pull_exact(self, version: Version) -> PulledVersion:
        return PulledVersion(weights=self.plane.kept[self.policy, version], stats=stats(version, None))


async def published(plane: Adopting, policy: PolicyId, *versions: SnapshotTensors, base: Manifest | None) -> None:
    """Publishes all versions; with a base, as adapters of it."""
    metadata = AdapterBinding.for_base(base, scale=SCALE).metadata() if base else None
    async with Publisher(plane, policy) as publisher:
        for version, tensors in enumerate(versions):
            await publisher.publish(Version(version), tensors, metadata=metadata)


def base_tensors() -> SnapshotTensors:
    return {
        name: (Dtype.BFLOAT16, tuple(weight.shape), bits_of(weight, Dtype.BFLOAT16))
        for name, weight in named_weights(make_torch.model()).items()
    }


@pytest.fixture
async def plane() -> Adopting:
    """Store with a base and three versions of adapters."""
    weights_plane = Adopting()
    await published(weights_plane, BASE, base_tensors(), base=None)
    adapters = [tensors_of(adapters_of(make_torch.model(), version)) for version in range(3)]
    await published(weights_plane, POLICY, *adapters, base=weights_plane.kept[BASE, 0].manifest)
    return weights_plane


@pytest.mark.anyio
async def test_adapter_versions_are_small_and_score_like_full_weights(plane: Adopting) -> None:
    bases = AdapterBases(lambda policy: Source(plane, policy))
    engine = engines.build({"kind": "local_torch", "seed": 7}, make_torch.TINY)
    for version in range(3):
        adapters = plane.kept[POLICY, version]
        assert adapters.manifest.size_bytes < plane.kept[BASE, 0].manifest.size_bytes / 4

        await engine.load(await bases.attach_base(adapters))

        assert engine.version == version
        expected = make_torch.logprobs(with_adapters(version), TEXT, 1)
        np.testing.assert_allclose(await engine.score(TEXT, 1), expected, atol=1e-5)
    await engine.load(make_torch.published(make_torch.model(), 3))
    expected = make_torch.logprobs(make_torch.model(), TEXT, 1)
    np.testing.assert_allclose(await engine.score(TEXT, 1), expected, atol=1e-5)
    await engine.close()


@pytest.mark.anyio
async def test_adapters_of_another_base_are_refused_and_the_old_weights_stay(plane: Adopting) -> None:
    engine = engines.build({"kind": "local_torch", "seed": 7}, make_torch.TINY)
    await engine.load(make_torch.published(make_torch.model(), 4))

    with pytest.raises(InvalidInput) as caught:
        await engine.load(replace(plane.kept[POLICY, 0], adapter_base=make_torch.published(make_torch.model(3), 0)))
    assert caught.value.code == "weights.adapter_mismatch"

    assert engine.version == 4
    await engine.close()
