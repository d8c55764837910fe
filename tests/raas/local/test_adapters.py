"""Adapters added to their base are what a plain forward with added weights says, over the real weight plane."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest
from astraflow.models.causal import named_weights
from astraflow.models.precision import bits_of
from astraflow.raas.bases import Bases
from astraflow.raas.engines import engines
from astraflow.weights.adapters import DOWN, UP, AdapterFacts
from astraflow.weights.publisher import Publisher
from astraflow.weights.puller import Puller
from astraflow.weights.tensors import SnapshotTensors
from tests import make_torch
from tests.weights.running import client_of, weight_store

POLICY, BASE = PolicyId("solver"), PolicyId("solver.base")
RANK, SCALE = 2, 0.75
TEXT = np.tile(np.arange(5, 25, dtype=np.int32), 2)


def adapters_of(model: PreTrainedModel, version: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Stem -> A [rank, in] and B [out, rank], of the attention's projections."""
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
    whole = {stem + DOWN: down for stem, (down, _) in pairs.items()}
    whole |= {stem + UP: up for stem, (_, up) in pairs.items()}
    return {name: (Dtype.FLOAT32, tuple(value.shape), bits_of(value, Dtype.FLOAT32)) for name, value in whole.items()}


def with_adapters(version: int) -> PreTrainedModel:
    """The slow and obvious way."""
    model = make_torch.model()
    with torch.no_grad():
        for stem, (down, up) in adapters_of(model, version).items():
            named_weights(model)[f"{stem}.weight"].add_(SCALE * up @ down)
    return model


async def publish_base(client: WeightPlaneClient) -> Manifest:
    """Once, as a policy of its own."""
    model = make_torch.model()
    tensors = {
        name: (Dtype.BFLOAT16, tuple(weight.shape), bits_of(weight, Dtype.BFLOAT16))
        for name, weight in named_weights(model).items()
    }
    async with Publisher(client, BASE) as publisher:
        await publisher.publish(Version(0), tensors)
        await publisher.wait()
    return (await client.plan(BASE, have=None)).manifest


@pytest.mark.anyio
async def test_versions_of_adapters_are_small_and_served_as_if_they_were_whole(tmp_path: Path) -> None:
    engine = engines.build({"kind": "local_torch", "seed": 7}, make_torch.TINY)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        base = await publish_base(client)
        metadata = AdapterFacts.on(base, scale=SCALE).metadata()
        puller, bases = Puller(client, POLICY), Bases(lambda policy: Puller(client, policy))
        async with Publisher(client, POLICY) as publisher:
            for version in range(3):
                tensors = tensors_of(adapters_of(make_torch.model(), version))
                await publisher.publish(Version(version), tensors, metadata=metadata)
                stats = await publisher.wait()
                assert stats is not None
                assert stats.full_bytes < base.size_bytes / 4

                pulled = await puller.newer()
                await engine.load(await bases.completed(pulled.weights))
                puller.commit(pulled.weights)

                assert engine.version == version
                expected = make_torch.logprobs(with_adapters(version), TEXT, 1)
                np.testing.assert_allclose(await engine.score(TEXT, 1), expected, atol=1e-5)
        whole = make_torch.published(make_torch.model(), 3)
        await engine.load(whole)
        expected = make_torch.logprobs(make_torch.model(), TEXT, 1)
        np.testing.assert_allclose(await engine.score(TEXT, 1), expected, atol=1e-5)
    await engine.close()


@pytest.mark.anyio
async def test_adapters_of_another_base_are_refused_and_the_old_weights_go_on(tmp_path: Path) -> None:
    engine = engines.build({"kind": "local_torch", "seed": 7}, make_torch.TINY)
    await engine.load(make_torch.published(make_torch.model(), 4))
    async with weight_store(tmp_path) as address, client_of(address) as client:
        metadata = AdapterFacts.on(await publish_base(client), scale=SCALE).metadata()
        async with Publisher(client, POLICY) as publisher:
            tensors = tensors_of(adapters_of(make_torch.model(), 0))
            await publisher.publish(Version(0), tensors, metadata=metadata)
            await publisher.wait()
        weights = await Bases(lambda policy: Puller(client, policy)).completed(
            (await Puller(client, POLICY).newer()).weights
        )
    other = make_torch.published(make_torch.model(3), 0)
    with pytest.raises(InvalidInput, match="was not trained on"):
        await engine.load(replace(weights, adapts=other))

    assert engine.version == 4
    await engine.close()
