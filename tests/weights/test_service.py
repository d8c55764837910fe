import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from structlog.testing import capture_logs

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import (
    Conflict,
    CorruptData,
    InvalidInput,
    NotAuthenticated,
    Unavailable,
    UnknownPolicy,
    UnknownVersion,
)
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Probe
from astraflow.weights.chunks import CHUNK_BYTES, split
from astraflow.weights.service import serve
from astraflow.weights.servicer import WeightsServicer
from astraflow.weights.store import opened
from astraflow.wire.channel import dial
from astraflow.wire.codec_weights import encode_manifest, encode_transfer
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneStub
from astraflow.wire.server import Listen
from tests.weights.running import CONFIG, TOKEN, client_of, weight_store
from tests.weights.versions import POLICY, delta_file, full_file, history, layout, snapshot

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[WeightPlaneClient]:
    async with weight_store(tmp_path) as address, client_of(address) as found:
        yield found


async def _publish_full(client: WeightPlaneClient, version: int, seed: int = 0) -> bool:
    manifest, buffer = layout(snapshot(seed), version)
    transfer, data = full_file(manifest, buffer)
    return await client.publish(manifest, transfer, split(data, chunk_bytes=1000))


async def test_a_publish_that_is_cut_off_and_refused_is_no_loose_end(tmp_path: Path) -> None:
    """Its stream ends before its file, as a torn connection may have it, and nobody waits for the answer."""
    loose_ends: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loose_ends.append(context))
    manifest, buffer = layout(snapshot(), 0)
    head = pb.PublishHead(manifest=encode_manifest(manifest), transfer=encode_transfer(full_file(manifest, buffer)[0]))

    async def pieces() -> AsyncIterator[pb.PublishPiece]:
        yield pb.PublishPiece(head=head)

    with opened(tmp_path, CONFIG) as store, capture_logs() as logs:
        servicer = WeightsServicer(store)
        publishing = asyncio.create_task(servicer.Publish(pieces(), cast("Any", None)))
        while not servicer._taking:  # noqa: ASYNC110 (nobody else needs to hear of it)
            await asyncio.sleep(0)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await servicer.stop()
    del publishing
    gc.collect()
    assert loose_ends == []
    assert [line["problem"] for line in logs if line["event"] == "version_refused"] == [
        f"the publish ended at byte 0 of {buffer.nbytes}"
    ]


async def test_a_version_is_published_planned_and_fetched(client: WeightPlaneClient) -> None:
    manifest, buffer = layout(snapshot(), 0)
    probe = Probe(tokens=bytes(8), lengths=(2,), scored_from=(1,), logprobs=bytes(4))
    manifest = replace(manifest, probe=probe, metadata={"step": "0"})
    transfer, data = full_file(manifest, buffer)

    assert await client.publish(manifest, transfer, split(data))
    plan = await client.plan(POLICY, have=None)

    assert plan.manifest == manifest
    fetched = [bytes(chunk.data) async for chunk in client.fetch(plan.transfers[0])]
    assert b"".join(fetched) == data
    assert [notice.version for notice in await client.versions(POLICY)] == [0]


async def test_a_fetch_begins_at_any_offset(client: WeightPlaneClient) -> None:
    await _publish_full(client, 0)
    (transfer,) = (await client.plan(POLICY, have=None)).transfers

    rest = b"".join([bytes(chunk.data) async for chunk in client.fetch(transfer, offset=6000)])
    nothing = [chunk async for chunk in client.fetch(transfer, offset=transfer.size_bytes)]

    assert rest == full_file(*layout(snapshot(), 0))[1][6000:]
    assert nothing == []
    with pytest.raises(InvalidInput, match="beyond"):
        _ = [chunk async for chunk in client.fetch(transfer, offset=transfer.size_bytes + 1)]


async def test_errors_arrive_as_what_they_are(client: WeightPlaneClient) -> None:
    await _publish_full(client, 3)

    assert not await _publish_full(client, 3)
    with pytest.raises(Conflict):
        await _publish_full(client, 3, seed=1)
    with pytest.raises(InvalidInput, match="expected 4"):
        await _publish_full(client, 9)
    with pytest.raises(UnknownPolicy):
        await client.plan(PolicyId("nobody"), have=None)
    with pytest.raises(UnknownVersion):
        await client.plan(POLICY, have=None, want=Version(1))
    versions = [layout(tensors, version) for version, tensors in enumerate(history(2), start=7)]
    transfer, data = delta_file(*versions)
    with pytest.raises((UnknownVersion, InvalidInput)):
        await client.publish(versions[1][0], transfer, split(data))


async def test_a_publish_without_a_head_or_with_a_bad_chunk_is_refused(tmp_path: Path) -> None:
    manifest, buffer = layout(snapshot(), 0)
    transfer, data = full_file(manifest, buffer)
    chunk = next(split(data))
    async with weight_store(tmp_path) as address, dial(address, token=TOKEN) as link:
        stub = WeightPlaneStub(link.channel)
        headless = [pb.PublishPiece(chunk=pb.Chunk(offset=0, data=b"a", checksum=1))]
        with pytest.raises(InvalidInput, match="begins with its head"):
            await link.call(stub.Publish, iter(headless), timeout_s=5)
        with pytest.raises(InvalidInput, match="begins with its head"):
            await link.call(stub.Publish, iter([]), timeout_s=5)
        client = WeightPlaneClient(link)
        with pytest.raises(CorruptData, match="checksum"):
            await client.publish(manifest, transfer, [replace(chunk, checksum=chunk.checksum ^ 1)])
        with pytest.raises(CorruptData, match="ended at byte"):
            await client.publish(manifest, transfer, [])

        assert list((tmp_path / POLICY).iterdir()) == []


async def test_a_watcher_gets_the_newest_version_and_then_every_one(client: WeightPlaneClient) -> None:
    await _publish_full(client, 0, seed=0)
    await _publish_full(client, 1, seed=1)
    async with aclosing(client.watch(POLICY, after=None)) as notices:
        assert (await anext(notices)).version == 1

        for version in (2, 3, 4):
            await _publish_full(client, version, seed=version)

        assert [(await anext(notices)).version for _ in range(3)] == [2, 3, 4]


async def test_a_watcher_may_come_before_the_policy(client: WeightPlaneClient) -> None:
    async with aclosing(client.watch(POLICY, after=None)) as notices:
        first = asyncio.ensure_future(anext(notices))
        await _publish_full(client, 5)

        assert (await first).version == 5


async def test_a_watcher_hears_nothing_of_what_it_knows(client: WeightPlaneClient) -> None:
    await _publish_full(client, 0)
    async with aclosing(client.watch(POLICY, after=Version(0))) as notices:
        waiting = asyncio.ensure_future(anext(notices))
        await _publish_full(client, 1, seed=1)

        assert (await waiting).version == 1


async def test_watchers_are_sent_home_when_the_store_stops(tmp_path: Path) -> None:
    async with weight_store(tmp_path, drain_s=60) as address:
        link = dial(address, token=TOKEN)
        watching = asyncio.ensure_future(anext(WeightPlaneClient(link).watch(POLICY, after=None)))
        await WeightPlaneClient(link).versions(POLICY)

    with pytest.raises(Unavailable):
        await watching
    await link.close()


async def test_a_slow_reader_delays_neither_a_publish_nor_another_reader(tmp_path: Path) -> None:
    size_bytes = 96 * CHUNK_BYTES  # more than the windows of gRPC take in
    bits = np.zeros(size_bytes, dtype=np.uint8)
    stepped = bits.copy()
    stepped[0] = 1
    first = layout({"w": (Dtype.FLOAT8_E4M3, (size_bytes,), bits)}, 0)
    second = layout({"w": (Dtype.FLOAT8_E4M3, (size_bytes,), stepped)}, 1)
    transfer, data = full_file(*first)
    delta, delta_data = delta_file(first, second)
    async with weight_store(tmp_path) as address, client_of(address) as client, client_of(address) as slow:
        await client.publish(first[0], transfer, split(data))
        async with aclosing(slow.fetch(transfer)) as chunks:
            await anext(chunks)  # and reads no further

            fetched = [len(chunk.data) async for chunk in client.fetch(transfer)]
            is_new = await client.publish(second[0], delta, split(delta_data))

    assert sum(fetched) == size_bytes
    assert is_new


async def test_every_version_is_back_after_a_restart(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as address, client_of(address) as client:
        for version in range(3):
            await _publish_full(client, version, seed=version)
        before = await client.versions(POLICY)

    async with weight_store(tmp_path) as address, client_of(address) as client:
        assert await client.versions(POLICY) == before


async def test_the_role_says_when_it_is_ready_and_stops_when_told(tmp_path: Path) -> None:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(CONFIG, listen=Listen(token=TOKEN), directory=tmp_path, stop=stop, on_ready=ready.set_result)
    )
    async with client_of(await ready) as client:
        assert await client.versions(POLICY) == ()

    stop.set()
    await serving


async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as address, dial(address, token="wrong") as link:
        with pytest.raises(NotAuthenticated):
            await WeightPlaneClient(link).versions(POLICY)


async def test_two_publishers_of_one_version_leave_one(client: WeightPlaneClient) -> None:
    results = await asyncio.gather(*(_publish_full(client, 0) for _ in range(4)))

    assert sorted(results) == [False, False, False, True]


async def test_of_two_different_publishes_one_wins(client: WeightPlaneClient) -> None:
    results = await asyncio.gather(*(_publish_full(client, 0, seed) for seed in range(3)), return_exceptions=True)

    assert sum(result is True for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 2
