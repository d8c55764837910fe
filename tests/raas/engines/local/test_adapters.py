"""Adapters on their base give the logprobs of a plain forward pass with the added weights."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast as cast_type

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Dtype, Manifest, SharedFile, Transfer
from astraflow.models.causal import cast, named_weights
from astraflow.models.precision import bits_of
from astraflow.raas.engines import engines
from astraflow.raas.engines.local_torch import LocalTorchEngine
from astraflow.raas.policies.adapter_bases import AdapterBases
from astraflow.trainer.engines.adapters import Adapters, LoraOptions
from astraflow.weights.adapters import DOWN_SUFFIX, UP_SUFFIX, AdapterBinding
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.shared_memory import map_read_only
from astraflow.weights.tensors import SnapshotTensors, VerifiedWeights, build_layout
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

    def commit(self, weights: VerifiedWeights) -> None:
        raise AssertionError("a base is not served")


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


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model in bfloat16, as engines and trainers compute in it."""
    cast(model, device=torch.device("cpu"), dtype=torch.bfloat16).eval().requires_grad_(False)
    return model


def trained(deviation: float) -> tuple[PreTrainedModel, VerifiedWeights]:
    """Returns a model in bfloat16 whose trainer has changed its adapters this much, and the version of it."""
    model = rounded(make_torch.model())
    base = make_torch.published(model)
    adapters = Adapters.add(model, LoraOptions(rank=4, alpha=8), published_dtype=Dtype.BFLOAT16, seed=0)
    draws = torch.Generator().manual_seed(1)
    for name, weight in adapters.weights().items():
        if name.endswith(UP_SUFFIX):
            weight.data.copy_(deviation * torch.randn(weight.shape, generator=draws))
    bits = {
        name: (Dtype.BFLOAT16, tuple(weight.shape), bits_of(weight, Dtype.BFLOAT16))
        for name, weight in adapters.weights().items()
    }
    metadata = AdapterBinding.for_base(base.manifest, scale=adapters.options.scale).metadata()
    manifest, buffer = build_layout(bits, policy=POLICY, version=Version(1), metadata=metadata)
    return model, VerifiedWeights(manifest=manifest, buffer=buffer, adapter_base=base)


@pytest.mark.anyio
@pytest.mark.parametrize("deviation", [1e-5, 1e-4, 1e-2])
async def test_adapters_of_any_size_are_served_in_bfloat16_as_the_trainer_computes_them(deviation: float) -> None:
    model, version = trained(deviation)
    base = make_torch.logprobs(rounded(make_torch.model()), TEXT, 1)
    expected = make_torch.logprobs(model, TEXT, 1)
    assert (expected != base).any(), "the adapters have an effect"
    spec = {"kind": "local_torch", "device": "cpu", "compute_dtype": "bfloat16"}
    engine = cast_type("LocalTorchEngine", engines.build(spec, make_torch.TINY))
    assert version.adapter_base is not None

    for _ in range(2):
        loaded = await engine.load(version)
        assert loaded.rounded_away == 0
        np.testing.assert_array_equal(make_torch.logprobs(engine._model, TEXT, 1), expected)
        await engine.load(version.adapter_base)
        np.testing.assert_array_equal(make_torch.logprobs(engine._model, TEXT, 1), base)
    await engine.close()


@pytest.mark.anyio
async def test_an_adapter_of_a_weight_that_is_no_linear_layer_is_added_to_it() -> None:
    model, whole = trained(1e-2)
    assert whole.adapter_base is not None
    embedding = next(spec for spec in whole.adapter_base.manifest.tensors if "embed_tokens" in spec.name)
    rows, width = embedding.shape
    stem = embedding.name.removesuffix(".weight")
    factors = {
        stem + DOWN_SUFFIX: (Dtype.FLOAT32, (1, width), bits_of(torch.ones(1, width), Dtype.FLOAT32)),
        stem + UP_SUFFIX: (Dtype.FLOAT32, (rows, 1), bits_of(torch.ones(rows, 1), Dtype.FLOAT32)),
    }
    manifest, buffer = build_layout(factors, policy=POLICY, version=Version(2), metadata=whole.manifest.metadata)
    engine = cast_type(
        "LocalTorchEngine",
        engines.build({"kind": "local_torch", "device": "cpu", "compute_dtype": "bfloat16"}, make_torch.TINY),
    )
    await engine.load(whole)
    await engine.load(VerifiedWeights(manifest=manifest, buffer=buffer, adapter_base=whole.adapter_base))
    added = make_torch.model()
    named_weights(added)[embedding.name].data.add_(2.0)
    np.testing.assert_array_equal(
        make_torch.logprobs(engine._model, TEXT, 1), make_torch.logprobs(rounded(added), TEXT, 1)
    )
    await engine.load(whole)  # the base is served again below the adapters
    np.testing.assert_array_equal(make_torch.logprobs(engine._model, TEXT, 1), make_torch.logprobs(model, TEXT, 1))
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
