import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Dtype, Transfer, TransferKind, TransferPlan
from astraflow.weights.codec.chunks import CHUNK_BYTES
from astraflow.weights.config import PullConfig, WeightsConfig
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.tensors import SnapshotTensors, tensor_bits
from astraflow.weights.transfer.puller import PulledVersion, Puller
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources
from astraflow.wire.channel import dial
from tests.errors import raises_code
from tests.weights.rewriting import RewrittenPlane, rewritten
from tests.weights.running import TOKEN, BriskClock, Wire, client_of, weight_store
from tests.weights.versions import POLICY, history, layout, snapshot, stepped

pytestmark = pytest.mark.anyio

FETCHING = PullConfig(use_shared_memory=False)
"""Disables shared memory to test transfers; `test_mapping` covers mapped versions."""

LARGE = {"w": (Dtype.BFLOAT16, (1024, 2048)), "b": (Dtype.FLOAT32, (1000,))}
"""Tensors of several chunks."""


def puller_of(client: WeightPlaneClient, config: PullConfig = FETCHING) -> Puller:
    clock = BriskClock()
    return Puller(WeightSources([WeightSource("store", [client])], clock=clock), POLICY, config=config, clock=clock)


async def publish(client: WeightPlaneClient, *snapshots: SnapshotTensors, first: int = 0) -> None:
    async with Publisher(client, POLICY) as publisher:
        for version, tensors in enumerate(snapshots, start=first):
            await publisher.publish(Version(version), tensors)


def assert_exact(pulled: PulledVersion, tensors: SnapshotTensors, version: int) -> None:
    manifest, buffer = layout(tensors, version)
    assert replace(pulled.weights.manifest, metadata={}) == manifest
    assert np.array_equal(pulled.weights.buffer, buffer)
    assert not pulled.weights.buffer.flags.writeable


@pytest.mark.long
async def test_a_node_follows_versions_and_skips_missed_ones(tmp_path: Path) -> None:
    snapshots = history(5)
    async with (
        weight_store(tmp_path) as address,
        client_of(address) as client,
        Publisher(client, POLICY) as publisher,
    ):
        puller = puller_of(client)
        await publisher.publish(Version(0), snapshots[0])
        first = await puller.pull_newer()
        puller.commit(first.weights)
        for version in (1, 2, 3):
            await publisher.publish(Version(version), snapshots[version])
        await publisher.wait()

        skipped = await puller.pull_newer()
        puller.commit(skipped.weights)
        await publisher.publish(Version(4), snapshots[4])
        last = await puller.pull_newer()
        puller.commit(last.weights)

    assert_exact(first, snapshots[0], 0)
    assert_exact(skipped, snapshots[3], 3)
    assert_exact(last, snapshots[4], 4)
    assert (first.stats.base, first.stats.full_bytes) == (None, first.stats.version_bytes)
    assert (skipped.stats.base, skipped.stats.transfers, skipped.stats.full_bytes) == (0, 3, 0)
    assert (last.stats.base, last.stats.transfers, last.stats.resumes, last.stats.fallbacks) == (3, 1, 0, 0)
    assert puller.committed == 4


async def test_listed_changes_turn_the_old_version_into_the_new_one(tmp_path: Path) -> None:
    old, new = history(2)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        await publish(client, old)
        puller = puller_of(client)
        puller.commit((await puller.pull_newer()).weights)
        await publish(client, new, first=1)

        weights = (await puller.pull_newer()).weights

    assert (weights.base, weights.manifest.version) == (0, 1)
    assert weights.changes
    for spec in weights.manifest.tensors:
        bits = old[spec.name][2].copy()
        positions = weights.changes.get(spec.name, np.empty(0, dtype=np.int64))
        bits[positions] = tensor_bits(spec, weights.buffer)[positions]
        assert np.array_equal(bits, new[spec.name][2])
        assert positions.dtype == np.int64


async def test_an_uncommitted_version_is_returned_again(tmp_path: Path) -> None:
    snapshots = history(3)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        await publish(client, snapshots[0])
        puller = puller_of(client)
        puller.commit((await puller.pull_newer()).weights)
        await publish(client, *snapshots[1:], first=1)

        first, second = await puller.pull_newer(), await puller.pull_newer()

    assert puller.committed == 0
    assert_exact(first, snapshots[2], 2)
    assert_exact(second, snapshots[2], 2)


async def test_pulling_waits_for_a_newer_version(tmp_path: Path) -> None:
    snapshots = history(2)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        puller = puller_of(client)
        waiting = asyncio.create_task(puller.pull_newer())
        await publish(client, snapshots[0])
        puller.commit((await waiting).weights)
        waiting = asyncio.create_task(puller.pull_newer())
        await client.versions(POLICY)
        assert not waiting.done()

        await publish(client, snapshots[1], first=1)

        assert_exact(await waiting, snapshots[1], 1)


@pytest.mark.long
async def test_an_exact_version_can_be_pulled_despite_newer_ones(tmp_path: Path) -> None:
    snapshots = history(5)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        await publish(client, *snapshots)
        puller = puller_of(client)
        for version in (1, 3, 3, 0):
            pulled = await puller.pull_exact(Version(version))
            puller.commit(pulled.weights)
            assert_exact(pulled, snapshots[version], version)
        assert_exact(await puller.pull_newer(), snapshots[4], 4)


async def test_pulling_an_exact_version_waits_for_its_publish(tmp_path: Path) -> None:
    snapshots = history(3)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        puller = puller_of(client)
        waiting = asyncio.create_task(puller.pull_exact(Version(1)))
        await publish(client, snapshots[0])
        await client.versions(POLICY)
        assert not waiting.done()
        await publish(client, *snapshots[1:], first=1)
        assert_exact(await waiting, snapshots[1], 1)


async def test_a_retired_version_is_unknown(tmp_path: Path) -> None:
    config = WeightsConfig(retained_versions=2, full_snapshot_every=1)
    async with weight_store(tmp_path, config=config) as address, client_of(address) as client:
        await publish(client, *history(6))
        with pytest.raises(UnknownVersion) as caught:
            await puller_of(client).pull_exact(Version(0))
        assert caught.value.code == "weights.version_not_stored"


@pytest.mark.parametrize("cut_after_chunks", [0.5, 1.5, 3.2])
async def test_an_interrupted_fetch_is_resumed(tmp_path: Path, cut_after_chunks: float) -> None:
    tensors = snapshot(0, LARGE)
    async with weight_store(tmp_path) as address, client_of(address) as direct:
        await publish(direct, tensors)
        wire = Wire(address)
        async with wire.strung() as far, rewritten(far) as plane:
            await plane.versions(POLICY)
            wire.cut_after(int(cut_after_chunks * CHUNK_BYTES))

            pulled = await puller_of(plane).pull_newer()

    assert_exact(pulled, tensors, 0)
    assert wire.cuts == 1
    assert pulled.stats.resumes >= 1
    resumed_at = plane.fetched[-1][1]  # the relay may have dropped forwarded chunks
    assert resumed_at % CHUNK_BYTES == 0
    assert resumed_at <= cut_after_chunks * CHUNK_BYTES


@pytest.mark.long
async def test_a_fetch_survives_a_restart_of_the_store(tmp_path: Path) -> None:
    first = snapshot(0, LARGE)
    second = stepped(first, 1)
    async with AsyncExitStack() as stack:
        first_life = await stack.enter_async_context(AsyncExitStack())
        address = await first_life.enter_async_context(weight_store(tmp_path))
        plane = await stack.enter_async_context(rewritten(address))
        await publish(plane, first)

        async def stop_store(plan: TransferPlan) -> TransferPlan:
            await first_life.aclose()
            return plan

        plane.on_plan = stop_store
        puller = puller_of(plane)
        pulling = asyncio.create_task(puller.pull_newer())
        await plane.has_fetched.wait()
        await stack.enter_async_context(weight_store(tmp_path, port=int(address.rsplit(":", 1)[1])))

        pulled = await pulling
        puller.commit(pulled.weights)
        await publish(plane, second, first=1)

        assert_exact(pulled, first, 0)
        assert_exact(await puller.pull_newer(), second, 1)


async def test_a_corrupt_chunk_is_fetched_again(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    corrupted: list[int] = []

    def corrupt_once(chunk: Chunk) -> Chunk:
        if chunk.offset == 2 * CHUNK_BYTES and not corrupted:
            corrupted.append(chunk.offset)
            return replace(chunk, data=bytes(len(chunk.data)))
        return chunk

    async with weight_store(tmp_path) as address, rewritten(address) as plane:
        await publish(plane, tensors)
        plane.on_chunk = corrupt_once

        pulled = await puller_of(plane).pull_newer()

    assert_exact(pulled, tensors, 0)
    assert (pulled.stats.resumes, pulled.stats.fallbacks) == (1, 0)
    assert [offset for _, offset in plane.fetched] == [0, 2 * CHUNK_BYTES]


def _rot(directory: Path, name: str) -> None:
    path = directory / POLICY / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def test_a_corrupt_stored_delta_is_replaced_by_a_full_snapshot(tmp_path: Path) -> None:
    snapshots = history(2)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        await publish(client, snapshots[0])
        puller = puller_of(client)
        puller.commit((await puller.pull_newer()).weights)
        await publish(client, snapshots[1], first=1)
        _rot(tmp_path, "0000000001.delta")

        pulled = await puller.pull_newer()

    assert_exact(pulled, snapshots[1], 1)
    assert (pulled.stats.fallbacks, pulled.stats.base, pulled.weights.changes) == (1, None, None)


async def test_a_corrupt_full_snapshot_is_refused(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as address, client_of(address) as client:
        await publish(client, snapshot())
        _rot(tmp_path, "0000000000.full")

        with raises_code(CorruptData, "weights.hash_mismatch"):
            await puller_of(client).pull_newer()


async def test_repeatedly_corrupt_chunks_are_an_error(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as address, rewritten(address) as plane:
        await publish(plane, snapshot())
        plane.on_chunk = lambda chunk: replace(chunk, checksum=chunk.checksum ^ 1)

        with raises_code(CorruptData, "weights.checksum_mismatch", "checksum"):
            await puller_of(plane).pull_newer()


@pytest.mark.parametrize("forged", ["root", "offset", "size", "policy"])
async def test_an_inconsistent_plan_is_refused(tmp_path: Path, forged: str) -> None:
    async def lying(plan: TransferPlan) -> TransferPlan:
        manifest, (transfer,) = plan.manifest, plan.transfers
        first, *rest = manifest.tensors
        match forged:
            case "root":
                manifest = replace(manifest, root_hash=bytes(32))
            case "offset":
                manifest = replace(manifest, tensors=(replace(first, offset=2**40), *rest))
            case "size":
                transfer = replace(transfer, size_bytes=2**50)
            case "policy":
                transfer = replace(transfer, policy=PolicyId("verifier"))
        return TransferPlan(manifest=manifest, transfers=(transfer,))

    async with weight_store(tmp_path) as address, rewritten(address) as plane:
        await publish(plane, snapshot())
        plane.on_plan = lying

        with pytest.raises(CorruptData):
            await puller_of(plane).pull_newer()

    assert plane.fetched == []


async def test_a_version_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as address, client_of(address) as client:
        await publish(client, snapshot())

        with raises_code(CorruptData, "weights.invalid_manifest", "limit"):
            await puller_of(client, PullConfig(use_shared_memory=False, max_version_bytes=1000)).pull_newer()


async def test_a_version_retired_after_the_plan_is_planned_again(tmp_path: Path) -> None:
    snapshots = history(2)
    plans: list[TransferPlan] = []
    async with weight_store(tmp_path) as address, rewritten(address) as plane, Publisher(plane, POLICY) as publisher:
        await publisher.publish(Version(0), snapshots[0])
        await publisher.publish(Version(1), snapshots[1])
        await publisher.wait()

        async def overtaken(plan: TransferPlan) -> TransferPlan:
            plans.append(plan)
            if len(plans) == 1:
                await publisher.publish(Version(2), snapshots[0])
                await publisher.wait()
            return plan

        plane.on_plan = overtaken
        pulled = await puller_of(plane).pull_newer()

    assert [plan.manifest.version for plan in plans] == [1, 2]
    assert plans[0].transfers[0].kind is TransferKind.FULL
    assert_exact(pulled, snapshots[0], 2)


async def test_a_stalled_stream_is_cancelled_and_resumed(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)

    class Stalling(RewrittenPlane):
        async def fetch(
            self, transfer: Transfer, *, offset: int = 0, size_bytes: int = 0
        ) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().fetch(transfer, offset=offset, size_bytes=size_bytes):
                yield chunk
                if len(self.fetched) == 1:
                    await asyncio.Event().wait()

    async with weight_store(tmp_path) as address, dial(address, token=TOKEN) as link:
        plane = Stalling(link)
        await publish(plane, tensors)

        pulled = await puller_of(plane, PullConfig(use_shared_memory=False, stall_timeout_s=0.4)).pull_newer()

    assert_exact(pulled, tensors, 0)
    assert [offset for _, offset in plane.fetched] == [0, CHUNK_BYTES]
    assert pulled.stats.resumes == 1


@pytest.mark.long
async def test_a_slow_reader_does_not_delay_publishing(tmp_path: Path) -> None:
    tensors = [snapshot(0, LARGE)]
    for seed in range(1, 7):
        tensors.append(stepped(tensors[-1], seed))
    async with weight_store(tmp_path) as address, rewritten(address) as plane:
        await publish(plane, tensors[0])
        puller = puller_of(plane)
        started, go_on = asyncio.Event(), asyncio.Event()

        async def held(plan: TransferPlan) -> TransferPlan:
            started.set()
            await go_on.wait()
            return plan

        plane.on_plan = held
        pulling = asyncio.create_task(puller.pull_newer())
        await started.wait()

        await publish(plane, *tensors[1:], first=1)

        assert not pulling.done()
        go_on.set()
        assert_exact(await pulling, tensors[6], 6)  # version 0 is no longer retained
