"""A trainer of adapters publishes their base once, before their first version, and nodes serve both together."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import Conflict
from astraflow.contract.ids import PolicyId, Version, adapter_base_of
from astraflow.raas.engines import engines
from astraflow.raas.engines.logprob_mismatch import measure_logprob_mismatch
from astraflow.raas.policies.adapter_bases import AdapterBases
from astraflow.trainer.config import TrainerConfig
from astraflow.trainer.driver import BackendDriver
from astraflow.weights.adapters import read_adapter_binding
from astraflow.weights.publish.publisher import PublishConfig
from astraflow.weights.signing import SigningKey
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources
from astraflow.wire.channel import dial
from tests import make_torch
from tests.errors import raises_code
from tests.trainer.backends.test_local import batch
from tests.trainer.test_service import TOKEN, Surroundings, surroundings

POLICY = PolicyId("solver")
BASE = adapter_base_of(POLICY)


def config(max_steps: int, model: Mapping[str, Any] = make_torch.TINY, **lora: Any) -> TrainerConfig:
    return TrainerConfig(
        policy=POLICY,
        model=dict(model),
        backend={"kind": "local", "device": "cpu", "learning_rate": 1e-2, "lora": {"rank": 4, **lora}},
        algorithm={"max_mismatch": None},  # the logprobs are made up
        max_steps=max_steps,
        probe_every=1,
        publish=PublishConfig(is_shared=False),
    )


@asynccontextmanager
async def training(folder: Path) -> AsyncIterator[tuple[Surroundings, WeightPlaneClient]]:
    """Environment of a trainer, with batches for the tiny model."""
    async with surroundings(folder, batches=4) as around:
        around.data.batches = [batch(step, version=step - 1, born=step - 1) for step in range(1, 5)]
        async with dial(around.weights_address, token=TOKEN) as link:
            yield around, WeightPlaneClient(link)


async def versions(client: WeightPlaneClient, policy: PolicyId) -> list[int]:
    return [int(notice.version) for notice in await client.versions(policy)]


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize("experts", [0, 4])
async def test_nodes_serve_published_adapters_on_the_published_base_as_the_trainer_computes(
    experts: int, tmp_path: Path
) -> None:
    model = {**make_torch.TINY, "experts": experts}
    async with training(tmp_path) as (around, client):
        await around.train(config(3, model))

        assert await versions(client, BASE) == [0]
        assert await versions(client, POLICY) == [0, 1, 2, 3]
        sources = WeightSources([WeightSource("store", [client])])
        bases = AdapterBases(lambda policy: Puller(sources, policy))
        engine = engines.build({"kind": "local_torch"}, model)
        for version in (Version(2), Version(3)):
            adapters = (await Puller(sources, POLICY).pull_exact(version)).weights
            binding = read_adapter_binding(adapters.manifest)
            assert binding is not None
            assert (binding.base, binding.base_version, binding.scale) == (BASE, 0, 8.0)
            await engine.load(await bases.attach_base(adapters))
            mismatch = await measure_logprob_mismatch(engine, adapters.manifest)
            assert mismatch is not None
            assert mismatch.max < 1e-3
        await engine.close()


@pytest.mark.anyio
async def test_the_base_is_not_even_copied_when_the_store_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[str] = []
    write = BackendDriver.write_base

    async def counted(driver: BackendDriver, *arguments: Any) -> None:
        copies.append("base")
        await write(driver, *arguments)

    monkeypatch.setattr(BackendDriver, "write_base", counted)
    signing = SigningKey.generate()
    async with training(tmp_path) as (around, client):
        around.data.weights_key = signing.public.raw
        await around.train(config(max_steps=1), signing=signing)
        await around.train(config(max_steps=2), signing=signing)

        assert copies == ["base"]
        assert await versions(client, BASE) == [0]
        assert await versions(client, POLICY) == [0, 1, 2]
        signing.public.check((await client.plan(BASE, have=None)).manifest)


@pytest.mark.anyio
async def test_another_base_under_the_same_name_is_refused(tmp_path: Path) -> None:
    async with training(tmp_path) as (around, client):
        await around.train(config(max_steps=0))
        around.directory = tmp_path / "other"

        with raises_code(Conflict, "trainer.other_base_published", "'solver.base'"):
            await around.train(config(max_steps=1, model={**make_torch.TINY, "seed": 1}))

        assert await versions(client, POLICY) == [0]
