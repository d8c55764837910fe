"""Several sources to fetch from: mirrors that are unreachable, stuck, wrong or slow, and the store behind them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData, InvalidInput, NotAuthenticated, Unavailable, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Dtype, Transfer, TransferPlan
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.weights.codec.chunks import CHUNK_BYTES, chunk_at
from astraflow.weights.config import PullConfig, WeightsConfig
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.tensors import SnapshotTensors
from astraflow.weights.transfer.puller import PulledVersion, Puller
from astraflow.weights.transfer.weight_sources import (
    FIRST_BACKOFF_S,
    MAX_BACKOFF_S,
    RateLimiter,
    WeightSource,
    WeightSources,
    connect_sources,
)
from astraflow.wire.channel import ServiceChannel, dial
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.weights.rewriting import RewrittenPlane
from tests.weights.running import TOKEN, BriskClock, Wire, client_of, dialling, weight_store
from tests.weights.versions import POLICY, history, layout, snapshot, stepped

pytestmark = pytest.mark.anyio

FETCHING = PullConfig(use_shared_memory=False)
"""Disables shared memory to test transfers; `test_mapping` covers mapped versions."""

LARGE = {"w": (Dtype.BFLOAT16, (4096, 2048)), "b": (Dtype.FLOAT32, (1000,))}
"""Tensors of several ranges of several chunks."""


async def publish(address: str, *snapshots: SnapshotTensors, first: int = 0) -> None:
    async with client_of(address) as client, Publisher(client, POLICY) as publisher:
        for version, tensors in enumerate(snapshots, start=first):
            await publisher.publish(Version(version), tensors)


@asynccontextmanager
async def planes(
    address: str, count: int, kind: Callable[[ServiceChannel], RewrittenPlane]
) -> AsyncIterator[list[RewrittenPlane]]:
    links = [dial(address, token=TOKEN, has_own_connection=True) for _ in range(count)]
    try:
        yield [kind(link) for link in links]
    finally:
        for link in links:
            await link.close()


def assert_exact(pulled: PulledVersion, tensors: SnapshotTensors, version: int) -> None:
    manifest, buffer = layout(tensors, version)
    assert replace(pulled.weights.manifest, metadata={}) == manifest
    assert np.array_equal(pulled.weights.buffer, buffer)


class Mirror(RewrittenPlane):
    """Mirror that serves `good_bytes` bytes and then fails as the test specifies."""

    breaks: Callable[[], Exception] | None = None
    good_bytes = 0

    async def fetch(self, transfer: Transfer, *, offset: int = 0, size_bytes: int = 0) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().fetch(transfer, offset=offset, size_bytes=size_bytes):
            if self.breaks is not None:
                self.good_bytes -= len(chunk.data)
                if self.good_bytes < 0:
                    raise self.breaks()
            yield chunk


@asynccontextmanager
async def mirror_and_store(
    directory: Path, *snapshots: SnapshotTensors
) -> AsyncIterator[tuple[Mirror, RewrittenPlane]]:
    """Two stores with the same versions."""
    async with weight_store(directory / "mirror") as near, weight_store(directory / "store") as far:
        await publish(near, *snapshots)
        await publish(far, *snapshots)
        async with planes(near, 1, Mirror) as (mirror,), planes(far, 1, RewrittenPlane) as (store,):
            assert isinstance(mirror, Mirror)
            yield mirror, store


def _puller(
    mirror: RewrittenPlane, store: RewrittenPlane, clock: Clock | None = None, **options: float
) -> tuple[Puller, WeightSources]:
    clock = clock or BriskClock()
    sources = WeightSources([WeightSource("mirror", [mirror]), WeightSource("store", [store])], clock=clock)
    config = PullConfig.model_validate({"preferred_source_wait_s": 0.01, "use_shared_memory": False, **options})
    return Puller(sources, POLICY, config=config, clock=clock), sources


async def test_the_preferred_source_is_used_instead_of_the_store(tmp_path: Path) -> None:
    tensors = snapshot()
    async with mirror_and_store(tmp_path, tensors) as (mirror, store):
        pulled = await _puller(mirror, store, SystemClock(), preferred_source_wait_s=30.0)[0].pull_newer()

    assert_exact(pulled, tensors, 0)
    assert (pulled.stats.source, store.fetched) == ("mirror", [])


@pytest.mark.long
async def test_after_a_failed_source_the_next_one_sends_only_the_rest(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with mirror_and_store(tmp_path, tensors) as (mirror, store):
        mirror.breaks, mirror.good_bytes = lambda: Unavailable("gone"), 5 * CHUNK_BYTES
        puller, sources = _puller(mirror, store)

        pulled = await puller.pull_newer()

        assert_exact(pulled, tensors, 0)
        assert pulled.stats.source == "store"
        assert min(offset for _, offset in store.fetched) == 5 * CHUNK_BYTES
        assert [source.name for source in sources.available()] == ["store"]


async def test_a_stalled_source_is_abandoned(tmp_path: Path) -> None:
    class Stalling(Mirror):
        async def fetch(
            self, transfer: Transfer, *, offset: int = 0, size_bytes: int = 0
        ) -> AsyncGenerator[Chunk, None]:
            await asyncio.Event().wait()
            yield chunk_at(0, b"")

    tensors = snapshot()
    async with mirror_and_store(tmp_path, tensors) as (mirror, store):
        mirror.__class__ = Stalling
        pulled = await _puller(mirror, store, stall_timeout_s=0.05)[0].pull_newer()

    assert_exact(pulled, tensors, 0)
    assert pulled.stats.source == "store"


class Trickling(Mirror):
    """Mirror that takes six seconds of the test's clock for each chunk."""

    clock: ManualClock

    async def fetch(self, transfer: Transfer, *, offset: int = 0, size_bytes: int = 0) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().fetch(transfer, offset=offset, size_bytes=size_bytes):
            await self.clock.pass_time(6.0)
            yield chunk


@asynccontextmanager
async def trickling_and_store(
    directory: Path, *snapshots: SnapshotTensors, **options: float
) -> AsyncIterator[tuple[Puller, WeightSources, RewrittenPlane]]:
    async with mirror_and_store(directory, *snapshots) as (mirror, store):
        mirror.__class__ = Trickling
        assert isinstance(mirror, Trickling)
        mirror.clock = clock = ManualClock()
        sources = WeightSources([WeightSource("mirror", [mirror]), WeightSource("store", [store])], clock=clock)
        config = PullConfig.model_validate({"use_shared_memory": False, **options})
        yield Puller(sources, POLICY, config=config, clock=clock), sources, store


@pytest.mark.long
async def test_a_source_below_the_minimum_rate_is_abandoned(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with trickling_and_store(tmp_path, tensors, min_bytes_per_s=1e6) as (puller, sources, store):
        pulled = await puller.pull_newer()

        assert_exact(pulled, tensors, 0)
        assert pulled.stats.source == "store"
        assert 0 < min(offset for _, offset in store.fetched) <= 3 * CHUNK_BYTES
        assert [source.name for source in sources.available()] == ["store"]


async def test_a_source_much_slower_than_another_is_abandoned(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with trickling_and_store(tmp_path, tensors, min_bytes_per_s=0) as (puller, sources, _):
        sources.all[1].bytes_per_s = 5e6
        pulled = await puller.pull_newer()

    assert_exact(pulled, tensors, 0)
    assert pulled.stats.source == "store"


@pytest.mark.long
async def test_a_source_as_slow_as_the_others_is_used(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with trickling_and_store(tmp_path, tensors, min_bytes_per_s=1e4) as (puller, sources, store):
        sources.all[1].bytes_per_s = 1e6
        pulled = await puller.pull_newer()

        assert_exact(pulled, tensors, 0)
        assert (pulled.stats.source, store.fetched) == ("mirror", [])
        assert sources.all[0].bytes_per_s == pytest.approx(pulled.stats.version_bytes / (17 * 6), rel=0.01)


@pytest.mark.long
async def test_a_slow_single_source_is_used(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with trickling_and_store(tmp_path, tensors) as (_, sources, _):
        only = WeightSources(sources.all[:1], clock=ManualClock())
        config = PullConfig(use_shared_memory=False, min_bytes_per_s=1e9)
        pulled = await Puller(only, POLICY, config=config, clock=BriskClock()).pull_newer()

    assert_exact(pulled, tensors, 0)
    assert pulled.stats.source == "mirror"


async def test_the_own_rate_limit_does_not_count_against_the_source(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    options = {"min_bytes_per_s": 1e6, "max_bytes_per_s": 1e5}
    async with trickling_and_store(tmp_path, tensors, **options) as (puller, _, store):
        pulled = await puller.pull_newer()

    assert_exact(pulled, tensors, 0)
    assert (pulled.stats.source, store.fetched) == ("mirror", [])


def _flipped(chunk: Chunk) -> Chunk:
    data = bytearray(chunk.data)
    data[-1] ^= 1
    return chunk_at(chunk.offset, bytes(data))


@pytest.mark.long
async def test_a_source_with_wrong_data_is_abandoned_and_its_data_dropped(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with mirror_and_store(tmp_path, tensors) as (mirror, store):
        mirror.on_chunk = _flipped
        pulled = await _puller(mirror, store)[0].pull_newer()

    assert_exact(pulled, tensors, 0)
    assert (pulled.stats.source, pulled.stats.fallbacks) == ("store", 0)


async def test_wrong_data_of_a_failed_source_does_not_count_against_the_next_one(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with mirror_and_store(tmp_path, tensors) as (mirror, store):
        mirror.on_chunk = _flipped
        mirror.breaks, mirror.good_bytes = lambda: Unavailable("gone"), 5 * CHUNK_BYTES
        puller, sources = _puller(mirror, store)

        pulled = await puller.pull_newer()

        assert_exact(pulled, tensors, 0)
        assert [source.failures for source in sources.all] == [1, 0]


@pytest.mark.long
async def test_wrong_data_from_every_source_is_refused(tmp_path: Path) -> None:
    async with mirror_and_store(tmp_path, snapshot(0, LARGE)) as (mirror, store):
        mirror.on_chunk = store.on_chunk = _flipped
        with raises_code(CorruptData, "weights.hash_mismatch", "hash"):
            await _puller(mirror, store)[0].pull_newer()


async def test_an_abandoned_source_is_tried_again_later(tmp_path: Path) -> None:
    tensors = history(3)
    used_sources = []
    async with (
        weight_store(tmp_path / "a") as near,
        weight_store(tmp_path / "b") as far,
        planes(near, 1, Mirror) as (mirror,),
        planes(far, 1, RewrittenPlane) as (store,),
    ):
        clock = ManualClock()
        sources = WeightSources([WeightSource("mirror", [mirror]), WeightSource("store", [store])], clock=clock)
        puller = Puller(
            sources,
            POLICY,
            clock=BriskClock(),
            config=PullConfig(preferred_source_wait_s=0.01, use_shared_memory=False),
        )
        for version, version_tensors in enumerate(tensors):
            await publish(far, version_tensors, first=version)
            if version == 2:
                await publish(near, version_tensors, first=version)
                clock.advance(FIRST_BACKOFF_S)
            pulled = await puller.pull_newer()
            puller.commit(pulled.weights)
            assert_exact(pulled, version_tensors, version)
            used_sources.append(pulled.stats.source)

    assert used_sources == ["store", "store", "mirror"]


async def test_a_source_that_refuses_the_token_is_abandoned(tmp_path: Path) -> None:
    tensors = snapshot()
    async with weight_store(tmp_path / "a") as near, weight_store(tmp_path / "b") as far:
        await publish(near, tensors)
        await publish(far, tensors)
        async with dial(near, token="wrong") as link, planes(far, 1, RewrittenPlane) as (store,):
            puller, sources = _puller(RewrittenPlane(link), store)
            pulled = await puller.pull_newer()
            assert_exact(pulled, tensors, 0)
            assert sources.all[0].failures

        async with dial(near, token="wrong") as link:
            sources = WeightSources([WeightSource("store", [RewrittenPlane(link)])])
            with pytest.raises(NotAuthenticated):
                await Puller(sources, POLICY).pull_newer()


@pytest.mark.long
async def test_a_version_missing_in_a_mirror_is_fetched_from_the_store(tmp_path: Path) -> None:
    tensors = history(3)
    config = WeightsConfig(retained_versions=2, full_snapshot_every=1)
    async with weight_store(tmp_path / "a", config=config) as near, weight_store(tmp_path / "b") as far:
        await publish(near, *tensors)
        await publish(far, *tensors)
        async with planes(near, 1, Mirror) as (mirror,), planes(far, 1, RewrittenPlane) as (store,):
            puller, sources = _puller(mirror, store)
            assert_exact(await puller.pull_exact(Version(0)), tensors[0], 0)
            assert sources.all[0].failures == 0
            with pytest.raises(UnknownVersion):
                await _puller(mirror, mirror)[0].pull_exact(Version(0))


@pytest.mark.parametrize("forged", ["older", "policy", "unwanted"])
async def test_a_plan_for_another_version_is_refused(tmp_path: Path, forged: str) -> None:
    tensors = history(2)
    async with weight_store(tmp_path) as address:
        await publish(address, *tensors)
        async with planes(address, 1, RewrittenPlane) as (plane,):
            puller = Puller(
                WeightSources([WeightSource("store", [plane])]), POLICY, config=FETCHING, clock=BriskClock()
            )
            if forged == "older":
                puller.commit((await puller.pull_newer()).weights)
                old = await plane.plan(POLICY, have=None, want=Version(0))
                await publish(address, tensors[0], first=2)
            else:
                old = await plane.plan(POLICY, have=None, want=Version(0))
            if forged == "policy":
                manifest = replace(old.manifest, policy=PolicyId("other"))
                transfers = tuple(replace(transfer, policy=PolicyId("other")) for transfer in old.transfers)
                old = TransferPlan(manifest=manifest, transfers=transfers)

            async def another(plan: TransferPlan) -> TransferPlan:
                return old

            plane.on_plan = another
            with raises_code(CorruptData, "weights.unexpected_plan"):
                await (puller.pull_newer() if forged != "unwanted" else puller.pull_exact(Version(1)))


@pytest.mark.long
async def test_ranges_are_fetched_over_all_connections(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with weight_store(tmp_path) as address:
        await publish(address, tensors)
        async with planes(address, 4, RewrittenPlane) as several:
            pulled = await Puller(WeightSources([WeightSource("store", several)]), POLICY, config=FETCHING).pull_newer()
            begun = sorted(offset for plane in several for _, offset in plane.fetched)
            assert all(plane.fetched for plane in several)

    assert_exact(pulled, tensors, 0)
    assert begun[:4] == sorted(set(begun))[:4]


async def test_several_tcp_connections_are_opened(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as address:
        wire = Wire(address)
        async with wire.strung() as far, connect_sources(far, PullConfig(connections=3), dial=dialling) as sources:
            for client in sources.all[0].clients:
                await client.versions(POLICY)
            assert wire.connections == 3


@pytest.mark.long
@pytest.mark.parametrize("connections", [1, 3])
async def test_a_transfer_interrupted_at_any_byte_resumes_there(tmp_path: Path, connections: int) -> None:
    tensors = history(2)
    async with weight_store(tmp_path) as address:
        await publish(address, *tensors)
        wire = Wire(address)
        async with (
            wire.strung() as far,
            connect_sources(far, PullConfig(connections=connections), dial=dialling) as sources,
        ):
            for client in sources.all[0].clients:
                await client.versions(POLICY)
            for at in range(1, 16_000, 997):  # the plan, headers and a full file of some 6,700 bytes, then no more
                wire.cut_after(at)
                pulled = await Puller(sources, POLICY, config=FETCHING, clock=BriskClock()).pull_newer()
                assert_exact(pulled, tensors[1], 1)
    assert wire.cuts > 5


@pytest.mark.long
async def test_repeated_interruptions_lose_only_data_in_flight(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with weight_store(tmp_path) as address:
        await publish(address, tensors)
        wire = Wire(address)
        async with wire.strung() as far, connect_sources(far, PullConfig(connections=2), dial=dialling) as sources:
            wire.cut_every(5 * CHUNK_BYTES)
            pulled = await Puller(sources, POLICY, config=FETCHING, clock=BriskClock()).pull_newer()

    assert_exact(pulled, tensors, 0)
    assert wire.cuts >= 2
    assert pulled.stats.resumes >= 2


async def test_all_connections_share_the_rate_limit() -> None:
    clock = ManualClock()
    pace = RateLimiter(1e6, clock)
    assert pace.slice_bytes(10**9) == 100_000
    waits = [asyncio.create_task(pace.wait_for(100_000)) for _ in range(5)]
    for done in (1, 2, 3, 4, 5):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sum(wait.done() for wait in waits) == done
        clock.advance(0.1)


@pytest.mark.long
async def test_a_rate_limited_node_fetches_slices(tmp_path: Path) -> None:
    tensors = snapshot(0, LARGE)
    async with weight_store(tmp_path) as address:
        await publish(address, tensors)
        async with planes(address, 2, RewrittenPlane) as several:
            pace = RateLimiter(1e7, BriskClock())
            pulled = await Puller(
                WeightSources([WeightSource("store", several)], rate_limiter=pace), POLICY, config=FETCHING
            ).pull_newer()
            fetches = sum(len(plane.fetched) for plane in several)

    assert_exact(pulled, tensors, 0)
    assert fetches >= pulled.stats.version_bytes / 1e6


def test_the_backoff_of_a_source_doubles_and_ends_with_a_success() -> None:
    source = WeightSource("mirror", ())
    assert [source.mark_failed(0.0) for _ in range(3)] == [FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S, 4 * FIRST_BACKOFF_S]
    for _ in range(10):
        source.mark_failed(0.0)
    assert source.mark_failed(0.0) == MAX_BACKOFF_S
    source.mark_succeeded()
    assert source.mark_failed(0.0) == FIRST_BACKOFF_S


async def test_an_invalid_source_address_is_refused() -> None:
    with raises_code(InvalidInput, "channel.invalid_address", "no port"):
        async with connect_sources("127.0.0.1:1", PullConfig(sources=("mirror.example",)), dial=dialling):
            pass


@pytest.mark.long
async def test_versions_are_built_in_two_alternating_buffers(tmp_path: Path) -> None:
    tensors = [snapshot(0, LARGE)]
    for seed in range(1, 4):
        tensors.append(stepped(tensors[-1], seed))
    places = []
    async with weight_store(tmp_path) as address, client_of(address) as client:
        puller = Puller(WeightSources([WeightSource("store", [client])]), POLICY, config=FETCHING)
        for version, version_tensors in enumerate(tensors):
            await publish(address, version_tensors, first=version)
            pulled = await puller.pull_newer()
            puller.commit(pulled.weights)
            assert_exact(pulled, version_tensors, version)
            places.append(pulled.weights.buffer.ctypes.data)

    assert len(set(places)) == 2, "only the served version is still in use"


@pytest.mark.long
async def test_a_buffer_with_readers_is_never_written(tmp_path: Path) -> None:
    tensors = history(5)
    kept = []
    async with weight_store(tmp_path) as address, client_of(address) as client:
        puller = Puller(WeightSources([WeightSource("store", [client])]), POLICY, config=FETCHING)
        for version, version_tensors in enumerate(tensors):
            await publish(address, version_tensors, first=version)
            pulled = await puller.pull_newer()
            puller.commit(pulled.weights)
            kept.append(pulled.weights.buffer[10:-10].data)

    for version, version_tensors in enumerate(tensors):
        assert bytes(kept[version]) == layout(version_tensors, version)[1].tobytes()[10:-10]
