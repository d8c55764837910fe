"""Mirrors of a store: identical bits, one transfer for all readers of a region, no reader delayed."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import NotPermitted
from astraflow.contract.ids import PolicyId, Version
from astraflow.weights.config import PullConfig, WeightsConfig
from astraflow.weights.mirror import Upstream
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.service import running
from astraflow.weights.signing import SigningKey
from astraflow.weights.store.servicer import WeightsServicer
from astraflow.weights.tensors import VerifiedWeights
from astraflow.weights.transfer.puller import PulledVersion, Puller
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources
from astraflow.wire.channel import dial
from astraflow.wire.server import ListenOptions
from tests.errors import raises_code
from tests.weights.running import TOKEN, BriskClock, Wire, client_of, weight_store
from tests.weights.versions import POLICY, history, layout, snapshot, stepped

pytestmark = pytest.mark.anyio

CONFIG = WeightsConfig(
    retained_versions=8, mirror=PullConfig(use_shared_memory=False, connections=2, stall_timeout_s=1.0)
)
KEY, OTHER = SigningKey.generate(), SigningKey.generate()


@asynccontextmanager
async def mirror_of(
    *addresses: str, directory: Path, trusted: SigningKey | None = None, token: str = TOKEN
) -> AsyncIterator[str]:
    """Runs a mirror and yields its address."""
    upstream = Upstream(addresses=addresses, dial=partial(dial, token=token))
    mirror = running(
        CONFIG,
        listen=ListenOptions(token=TOKEN, drain_s=0.2),
        directory=directory,
        clock=BriskClock(),
        trusted=trusted.public if trusted else None,
        upstream=upstream,
    )
    async with mirror as address:
        yield address


def reader_of(client: WeightPlaneClient, *, trusted: SigningKey | None = None) -> Puller:
    return Puller(
        WeightSources([WeightSource("mirror", [client])]),
        POLICY,
        config=PullConfig(use_shared_memory=False),
        trusted=trusted.public if trusted else None,
        clock=BriskClock(),
    )


async def version(number: int, puller: Puller) -> PulledVersion:
    """Follows the store until that version is available."""
    while True:
        pulled = await puller.pull_newer()
        puller.commit(pulled.weights)
        if pulled.weights.manifest.version == number:
            return pulled


@pytest.mark.long
async def test_readers_of_a_mirror_cause_one_transfer_from_the_store(tmp_path: Path) -> None:
    snapshots = history(3)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(weight_store(tmp_path / "store"))
        wire = Wire(store)
        far = await stack.enter_async_context(wire.strung())
        near = await stack.enter_async_context(mirror_of(far, directory=tmp_path / "mirror"))
        publisher = await stack.enter_async_context(
            Publisher(await stack.enter_async_context(client_of(store)), POLICY)
        )
        clients = [await stack.enter_async_context(client_of(near)) for _ in range(3)]
        readers = [reader_of(client) for client in clients]
        for number, tensors in enumerate(snapshots):
            await publisher.publish(Version(number), tensors)
            for pulled in await asyncio.gather(*(version(number, reader) for reader in readers)):
                manifest, buffer = layout(tensors, number)
                assert pulled.weights.manifest.root_hash == manifest.root_hash
                assert np.array_equal(pulled.weights.buffer, buffer)
                assert (pulled.stats.base, pulled.stats.full_bytes > 0) == (
                    (number - 1, False) if number else (None, True)
                )
        assert 0 < wire.connections <= CONFIG.mirror.connections, "readers connect only to the mirror"


async def test_a_mirror_resumes_with_a_delta_after_an_outage(tmp_path: Path) -> None:
    snapshots = history(5)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(weight_store(tmp_path / "store", config=CONFIG))
        publisher = await stack.enter_async_context(
            Publisher(await stack.enter_async_context(client_of(store)), POLICY)
        )
        await publisher.publish(Version(0), snapshots[0])
        async with mirror_of(store, directory=tmp_path / "mirror") as near, client_of(near) as client:
            await version(0, reader_of(client))
        for number in (1, 2, 3, 4):
            await publisher.publish(Version(number), snapshots[number])
        await publisher.wait()
        async with mirror_of(store, directory=tmp_path / "mirror") as near, client_of(near) as client:
            pulled = await version(4, reader_of(client))
            kept = await client.versions(POLICY)
    assert np.array_equal(pulled.weights.buffer, layout(snapshots[4], 4)[1])
    assert [notice.version for notice in kept] == [0, 4]
    assert 0 < kept[1].delta_bytes < kept[1].full_bytes


@pytest.mark.long
async def test_mirrors_can_follow_mirrors_and_new_policies(tmp_path: Path) -> None:
    other = PolicyId("verifier")
    tensors = snapshot(5)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(weight_store(tmp_path / "store"))
        first = await stack.enter_async_context(mirror_of(store, directory=tmp_path / "first"))
        second = await stack.enter_async_context(mirror_of(first, directory=tmp_path / "second"))
        client = await stack.enter_async_context(client_of(store))
        reading = await stack.enter_async_context(client_of(second))
        async with Publisher(client, POLICY) as publisher:
            await publisher.publish(Version(0), snapshot(0))
        await version(0, reader_of(reading))
        async with Publisher(client, other) as publisher:
            await publisher.publish(Version(0), tensors)
        puller = Puller(WeightSources([WeightSource("second", [reading])]), other, clock=BriskClock())
        pulled = await version(0, puller)
    assert np.array_equal(pulled.weights.buffer, layout(tensors, policy=other)[1])


@pytest.mark.long
async def test_a_mirror_survives_repeated_connection_losses(tmp_path: Path) -> None:
    snapshots = history(6)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(weight_store(tmp_path / "store", config=CONFIG))
        wire = Wire(store)
        far = await stack.enter_async_context(wire.strung())
        wire.cut_every(9000)
        near = await stack.enter_async_context(mirror_of(far, directory=tmp_path / "mirror"))
        publisher = await stack.enter_async_context(
            Publisher(await stack.enter_async_context(client_of(store)), POLICY)
        )
        reader = reader_of(await stack.enter_async_context(client_of(near)))
        for number, tensors in enumerate(snapshots):
            await publisher.publish(Version(number), tensors)
        pulled = await version(5, reader)
    assert wire.cuts
    assert np.array_equal(pulled.weights.buffer, layout(snapshots[5], 5)[1])


async def test_publishing_to_a_mirror_is_refused(tmp_path: Path) -> None:
    async with (
        weight_store(tmp_path / "store") as store,
        mirror_of(store, directory=tmp_path / "mirror") as near,
        client_of(near) as client,
        Publisher(client, POLICY, clock=BriskClock()) as publisher,
    ):
        await publisher.publish(Version(0), snapshot())
        with raises_code(NotPermitted, "weights.mirror_is_read_only"):
            await publisher.wait()


async def test_versions_without_a_valid_signature_are_not_mirrored(tmp_path: Path) -> None:
    first = snapshot()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(weight_store(tmp_path / "store"))
        near = await stack.enter_async_context(mirror_of(store, directory=tmp_path / "mirror", trusted=KEY))
        client = await stack.enter_async_context(client_of(store))
        reading = await stack.enter_async_context(client_of(near))
        async with Publisher(client, POLICY, signing=KEY) as publisher:
            await publisher.publish(Version(0), first)
        await version(0, reader_of(reading, trusted=KEY))
        async with Publisher(client, POLICY, signing=OTHER) as publisher:
            await publisher.publish(Version(1), stepped(first, 1))
        await asyncio.sleep(0.3)
        assert [notice.version for notice in await reading.versions(POLICY)] == [0]
        async with Publisher(client, POLICY, signing=KEY) as publisher:
            await publisher.publish(Version(2), stepped(first, 2))
        assert (await version(2, reader_of(reading, trusted=KEY))).weights.manifest.version == 2


async def test_a_mirror_resumes_when_the_store_is_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with weight_store(tmp_path / "store") as store:
            port = int(store.rsplit(":", 1)[1])
        near = await stack.enter_async_context(mirror_of(store, directory=tmp_path / "mirror"))
        reading = await stack.enter_async_context(client_of(near))
        await asyncio.sleep(0.2)
        again = await stack.enter_async_context(weight_store(tmp_path / "store", port=port))
        client = await stack.enter_async_context(client_of(again))
        async with Publisher(client, POLICY) as publisher:
            await publisher.publish(Version(0), snapshot())
        assert (await version(0, reader_of(reading))).weights.manifest.version == 0


async def test_a_mirror_resumes_after_an_error_of_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_mirrored = WeightsServicer.store_mirrored
    failures = [OSError(errno.EROFS, "Read-only file system"), OSError(errno.EIO, "Input/output error")]

    async def fail_first(servicer: WeightsServicer, weights: VerifiedWeights) -> None:
        if failures:
            raise failures.pop()
        await store_mirrored(servicer, weights)

    monkeypatch.setattr(WeightsServicer, "store_mirrored", fail_first)
    async with (
        weight_store(tmp_path / "store") as store,
        mirror_of(store, directory=tmp_path / "mirror") as near,
        client_of(store) as client,
        client_of(near) as reading,
    ):
        async with Publisher(client, POLICY) as publisher:
            await publisher.publish(Version(0), snapshot())
        async with asyncio.timeout(30):
            assert (await version(0, reader_of(reading))).weights.manifest.version == 0
    assert failures == []
