import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from structlog.testing import capture_logs

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import (
    Conflict,
    CorruptData,
    InternalError,
    InvalidInput,
    NotAuthenticated,
    Unavailable,
    UnknownPolicy,
    UnknownVersion,
)
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, Probe, SharedFile, Transfer
from astraflow.weights.codec.chunks import CHUNK_BYTES, split, unhashed_transfer
from astraflow.weights.config import WeightsConfig
from astraflow.weights.mirror import Mirror, Upstream
from astraflow.weights.service import serve
from astraflow.weights.shared_memory import SharedBuffer
from astraflow.weights.store import transfer_planner
from astraflow.weights.store.servicer import MAX_UPLOADS, WeightsServicer
from astraflow.weights.store.store import WeightStore, open_store
from astraflow.wire.channel import ServiceChannel, dial
from astraflow.wire.codecs.converter import to_message
from astraflow.wire.codecs.weights import decode_chunk, encode_manifest, encode_transfer
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneStub
from astraflow.wire.server import ListenOptions
from tests.errors import raises_code
from tests.weights.running import CONFIG, TOKEN, client_of, weight_store
from tests.weights.versions import POLICY, delta_file, full_file, history, layout, snapshot

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[WeightPlaneClient]:
    async with weight_store(tmp_path) as address, client_of(address) as client:
        yield client


async def _publish_full(client: WeightPlaneClient, version: int, seed: int = 0) -> bool:
    manifest, buffer = layout(snapshot(seed), version)
    transfer, data = full_file(manifest, buffer)
    return await client.publish(manifest, transfer, split(data, chunk_bytes=1000))


async def _share(link: ServiceChannel, manifest: Manifest, file: SharedFile) -> bool:
    """Publishes a version whose bits are in a buffer on this host."""
    head = pb.PublishHead(
        manifest=encode_manifest(manifest),
        transfer=encode_transfer(unhashed_transfer(manifest)),
        shared=to_message(file, pb.SharedFile),
    )
    call = link.call(WeightPlaneStub(link.channel).Publish, iter([pb.PublishPiece(head=head)]), timeout_s=10)
    return bool((await call).is_new)


@pytest.mark.long
async def test_a_cancelled_publish_leaves_no_pending_task(tmp_path: Path) -> None:
    """Ends the stream before its file, as a broken connection does, while no caller waits for the answer."""
    loose_ends: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loose_ends.append(context))
    manifest, buffer = layout(snapshot(), 0)
    head = pb.PublishHead(manifest=encode_manifest(manifest), transfer=encode_transfer(full_file(manifest, buffer)[0]))

    async def pieces() -> AsyncIterator[pb.PublishPiece]:
        yield pb.PublishPiece(head=head)

    with open_store(tmp_path, CONFIG) as store, capture_logs() as logs:
        servicer = WeightsServicer(store)
        publishing = asyncio.create_task(servicer.Publish(pieces(), cast("Any", None)))
        while not servicer._pending_commits:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await servicer.stop()
    del publishing
    gc.collect()
    assert loose_ends == []
    (refused,) = (line for line in logs if line["event"] == "version_refused")
    assert f"byte 0 of {buffer.nbytes}" in refused["problem"]


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


async def test_a_fetch_can_start_at_any_offset(client: WeightPlaneClient) -> None:
    await _publish_full(client, 0)
    (transfer,) = (await client.plan(POLICY, have=None)).transfers

    rest = b"".join([bytes(chunk.data) async for chunk in client.fetch(transfer, offset=6000)])
    nothing = [chunk async for chunk in client.fetch(transfer, offset=transfer.size_bytes)]

    assert rest == full_file(*layout(snapshot(), 0))[1][6000:]
    assert nothing == []
    with pytest.raises(InvalidInput) as caught:
        _ = [chunk async for chunk in client.fetch(transfer, offset=transfer.size_bytes + 1)]
    assert caught.value.code == "weights.range_beyond_file"


async def test_concurrently_fetched_ranges_make_up_the_file(tmp_path: Path) -> None:
    size_bytes = 5 * CHUNK_BYTES + 17
    bits = np.random.default_rng(0).integers(0, 256, size_bytes, dtype=np.uint8)
    manifest, buffer = layout({"w": (Dtype.FLOAT8_E4M3, (size_bytes,), bits)}, 0)
    transfer, data = full_file(manifest, buffer)
    async with weight_store(tmp_path) as address, dial(address, token=TOKEN) as link:
        await WeightPlaneClient(link).publish(manifest, transfer, split(data))
        (transfer,) = (await WeightPlaneClient(link).plan(POLICY, have=None)).transfers

        async def fetched(offset: int, size: int) -> bytes:
            request = pb.FetchRequest(transfer=encode_transfer(transfer), offset=offset, size_bytes=size)
            stream = link.stream(WeightPlaneStub(link.channel).Fetch, request, timeout_s=10)
            chunks = [decode_chunk(chunk) async for chunk in stream]
            ends = [chunk.offset + len(chunk.data) for chunk in chunks]
            assert [chunk.offset for chunk in chunks] == [offset, *ends[:-1]]
            return b"".join(bytes(chunk.data) for chunk in chunks)

        cuts = [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5, size_bytes]
        pieces = await asyncio.gather(*(fetched(start, end - start) for start, end in pairwise(cuts)))

        assert b"".join(pieces) == data
        assert await fetched(size_bytes - 3, 3) == data[-3:]
        with pytest.raises(InvalidInput) as caught:
            await fetched(size_bytes - 3, 4)
        assert caught.value.code == "weights.range_beyond_file"


async def test_a_watcher_without_a_policy_receives_all_policies(client: WeightPlaneClient) -> None:
    async def publish(policy: str, version: int) -> None:
        manifest, buffer = layout(snapshot(version), version, policy=PolicyId(policy))
        transfer, data = full_file(manifest, buffer)
        await client.publish(manifest, transfer, split(data))

    await publish("one", 0)
    await publish("one", 1)
    await publish("two", 7)
    async with aclosing(client.watch(None, after=None)) as notices:
        first = {(notice.policy, notice.version) for notice in [await anext(notices), await anext(notices)]}
        assert first == {("one", 1), ("two", 7)}

        for policy, version in (("two", 8), ("three", 0), ("one", 2)):
            await publish(policy, version)

        later = [await anext(notices) for _ in range(3)]
    assert {(notice.policy, notice.version) for notice in later} == {("two", 8), ("three", 0), ("one", 2)}


async def test_a_notice_has_the_number_of_changed_elements(client: WeightPlaneClient) -> None:
    snapshots = history(3)
    versions = [layout(tensors, version) for version, tensors in enumerate(snapshots)]
    changed = [
        sum(int((bits != later[name][2]).sum()) for name, (_, _, bits) in tensors.items())
        for tensors, later in pairwise(snapshots)
    ]
    full, delta, derived = full_file(*versions[0]), delta_file(versions[0], versions[1]), full_file(*versions[2])
    for (manifest, _), (transfer, data) in zip(versions, (full, delta, derived), strict=True):
        await client.publish(manifest, transfer, split(data))

    notices = await client.versions(POLICY)

    assert [notice.changed_elements for notice in notices] == [0, *changed]
    assert {notice.elements for notice in notices} == {sum(tensor.elements for tensor in versions[0][0].tensors)}


async def test_a_version_is_adopted_from_a_publisher_on_this_host(tmp_path: Path) -> None:
    manifest, buffer = layout(snapshot(), 0)
    shared = SharedBuffer(manifest.size_bytes)
    shared.buffer[:] = buffer
    async with weight_store(tmp_path) as address, dial(address, token=TOKEN) as link:
        with raises_code(UnknownVersion, "weights.shared_memory_unusable"):
            await _share(link, manifest, replace(shared.file, host="another"))
        assert await _share(link, manifest, shared.file)

        plan = await WeightPlaneClient(link).plan(POLICY, have=None)
        assert plan.shared == shared.file
        assert b"".join([bytes(c.data) async for c in WeightPlaneClient(link).fetch(plan.transfers[0])]) == bytes(
            buffer
        )
    shared.unlink()


async def test_read_buffers_are_released_in_time_without_a_new_version(tmp_path: Path) -> None:
    """Releases buffers in time for a publisher with few of them, which may wait for one before the next version."""
    buffers = [SharedBuffer(layout(snapshot())[0].size_bytes) for _ in range(3)]
    config = WeightsConfig(retired_version_s=0.5, full_snapshot_every=100)
    async with weight_store(tmp_path, config=config) as address, dial(address, token=TOKEN) as link:
        client = WeightPlaneClient(link)
        for version, (tensors, buffer) in enumerate(zip(history(3), buffers, strict=True)):
            manifest, bits = layout(tensors, version)
            buffer.buffer[:] = bits
            await _share(link, manifest, buffer.file)
            async for _ in client.fetch((await client.plan(POLICY, have=None)).transfers[0]):
                pass
        assert not buffers[1].reclaim(), "version 1 is only in memory, and lingers"

        async with asyncio.timeout(30):
            while not buffers[1].reclaim():  # noqa: ASYNC110 (a lock has no event)
                await asyncio.sleep(0.01)
    for buffer in buffers:
        buffer.unlink()


async def test_a_refused_reader_holds_no_buffer(tmp_path: Path) -> None:
    """Checks for references through errors: gRPC retains the error of a call, and an error retains its frames."""
    buffers = [SharedBuffer(layout(snapshot())[0].size_bytes) for _ in range(3)]
    config = WeightsConfig(retired_version_s=0, full_snapshot_every=100)
    async with weight_store(tmp_path, config=config) as address, dial(address, token=TOKEN) as link:
        client = WeightPlaneClient(link)
        for version, (tensors, buffer) in enumerate(zip(history(3), buffers, strict=True)):
            manifest, bits = layout(tensors, version)
            buffer.buffer[:] = bits
            await _share(link, manifest, buffer.file)
            with pytest.raises(UnknownVersion):
                _ = [chunk async for chunk in client.fetch(unhashed_transfer(manifest))]

        assert [buffer.reclaim() for buffer in buffers] == [True, True, False]
    for buffer in buffers:
        buffer.unlink()


async def test_a_file_opened_for_a_cancelled_call_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, closed = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Opened:
        def close(self) -> None:
            loop.call_soon_threadsafe(closed.set)

    def held(transfer: Transfer) -> Opened:
        gate.wait(10)
        return Opened()

    with open_store(tmp_path, CONFIG) as store:
        monkeypatch.setattr(store, "open", held)
        opening = asyncio.create_task(WeightsServicer(store)._open(unhashed_transfer(layout(snapshot())[0])))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        assert opening.cancelled()
        assert not closed.is_set()
        gate.set()

        async with asyncio.timeout(30):
            await closed.wait()


@pytest.mark.parametrize(("wait_s", "segments"), [(5.0, 1), (0.0, 5)])
async def test_a_reader_waits_for_a_direct_delta_for_a_limited_time(
    tmp_path: Path, wait_s: float, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def held(*_: object, **__: object) -> None:
        gate.wait(10)
        raise UnknownVersion("too late")

    if not wait_s:
        monkeypatch.setattr(transfer_planner, "rebuild", held)
    config = WeightsConfig(direct_delta_wait_s=wait_s)
    versions = [layout(tensors, version) for version, tensors in enumerate(history(6))]
    async with weight_store(tmp_path, config=config) as address, client_of(address) as client:
        transfer, data = full_file(*versions[0])
        await client.publish(versions[0][0], transfer, split(data))
        for before, now in pairwise(versions):
            transfer, data = delta_file(before, now)
            await client.publish(now[0], transfer, split(data))

        plans = await asyncio.gather(*(client.plan(POLICY, have=Version(0)) for _ in range(4)))

        assert [len(plan.transfers) for plan in plans] == [segments] * 4
        gate.set()


async def test_retention_runs_once_for_versions_published_meanwhile(tmp_path: Path) -> None:
    """Runs retention once for several versions: an upload to a bucket may take long, and readers need the threads."""
    gate, done = threading.Event(), 0

    def tidied(policy: PolicyId) -> None:
        nonlocal done
        gate.wait(10)
        done += 1

    with open_store(tmp_path, CONFIG) as store:
        store.apply_retention = tidied  # type: ignore[method-assign]
        servicer = WeightsServicer(store)
        tidying = [asyncio.create_task(servicer._apply_retention(POLICY)) for _ in range(20)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tidying)

    assert done == 2


async def test_errors_arrive_with_their_type_and_code(client: WeightPlaneClient) -> None:
    await _publish_full(client, 3)

    assert not await _publish_full(client, 3)
    with pytest.raises(Conflict):
        await _publish_full(client, 3, seed=1)
    with raises_code(InvalidInput, "weights.version_out_of_order", "version is 4"):
        await _publish_full(client, 9)
    with pytest.raises(UnknownPolicy):
        await client.plan(PolicyId("unknown"), have=None)
    with pytest.raises(UnknownVersion):
        await client.plan(POLICY, have=None, want=Version(1))
    versions = [layout(tensors, version) for version, tensors in enumerate(history(2), start=7)]
    transfer, data = delta_file(*versions)
    with pytest.raises((UnknownVersion, InvalidInput)):
        await client.publish(versions[1][0], transfer, split(data))


async def test_of_versions_that_are_never_complete_only_some_take_memory(tmp_path: Path) -> None:
    manifest, buffer = layout(snapshot(), 0)
    transfer, data = full_file(manifest, buffer)
    head = pb.PublishHead(manifest=encode_manifest(manifest), transfer=encode_transfer(transfer))
    end = asyncio.Event()

    async def unfinished() -> AsyncIterator[pb.PublishPiece]:
        yield pb.PublishPiece(head=head)
        await end.wait()

    async with weight_store(tmp_path) as address, dial(address, token=TOKEN) as link:
        stub = WeightPlaneStub(link.channel)
        calls = {
            asyncio.create_task(link.call(stub.Publish, unfinished(), timeout_s=20)) for _ in range(MAX_UPLOADS + 4)
        }
        refused: set[asyncio.Task[Any]] = set()
        while len(refused) < 4:
            refused |= (await asyncio.wait(calls - refused, return_when=asyncio.FIRST_COMPLETED))[0]
        codes = [getattr(call.exception(), "code", "") for call in refused]
        assert codes == ["weights.too_many_uploads"] * 4
        end.set()
        for call in calls - refused:
            with raises_code(CorruptData, "weights.incomplete_file"):
                await call
        assert await WeightPlaneClient(link).publish(manifest, transfer, split(data))


async def test_a_publish_without_a_head_or_with_a_bad_chunk_is_refused(tmp_path: Path) -> None:
    manifest, buffer = layout(snapshot(), 0)
    transfer, data = full_file(manifest, buffer)
    chunk = next(split(data))
    async with weight_store(tmp_path) as address, dial(address, token=TOKEN) as link:
        stub = WeightPlaneStub(link.channel)
        headless = [pb.PublishPiece(chunk=pb.Chunk(offset=0, data=b"a", checksum=1))]
        with pytest.raises(InvalidInput) as caught:
            await link.call(stub.Publish, iter(headless), timeout_s=5)
        assert caught.value.code == "weights.no_head"
        with pytest.raises(InvalidInput) as caught:
            await link.call(stub.Publish, iter([]), timeout_s=5)
        assert caught.value.code == "weights.no_head"
        client = WeightPlaneClient(link)
        with raises_code(CorruptData, "chunk.checksum_mismatch"):
            await client.publish(manifest, transfer, [replace(chunk, checksum=chunk.checksum ^ 1)])
        with raises_code(CorruptData, "weights.incomplete_file"):
            await client.publish(manifest, transfer, [])

        assert not (tmp_path / POLICY).exists()


async def test_a_watcher_gets_the_newest_and_every_later_version(client: WeightPlaneClient) -> None:
    await _publish_full(client, 0, seed=0)
    await _publish_full(client, 1, seed=1)
    async with aclosing(client.watch(POLICY, after=None)) as notices:
        assert (await anext(notices)).version == 1

        for version in (2, 3, 4):
            await _publish_full(client, version, seed=version)

        assert [(await anext(notices)).version for _ in range(3)] == [2, 3, 4]


async def test_a_watcher_can_subscribe_before_the_first_version(client: WeightPlaneClient) -> None:
    async with aclosing(client.watch(POLICY, after=None)) as notices:
        first = asyncio.ensure_future(anext(notices))
        await _publish_full(client, 5)

        assert (await first).version == 5


async def test_a_watcher_receives_no_version_that_it_has(client: WeightPlaneClient) -> None:
    await _publish_full(client, 0)
    async with aclosing(client.watch(POLICY, after=Version(0))) as notices:
        waiting = asyncio.ensure_future(anext(notices))
        await _publish_full(client, 1, seed=1)

        assert (await waiting).version == 1


async def test_watch_streams_end_when_the_store_stops(tmp_path: Path) -> None:
    async with weight_store(tmp_path, drain_s=60) as address:
        link = dial(address, token=TOKEN)
        watching = asyncio.ensure_future(anext(WeightPlaneClient(link).watch(POLICY, after=None)))
        await WeightPlaneClient(link).versions(POLICY)

    with pytest.raises(Unavailable):
        await watching
    await link.close()


@pytest.mark.long
async def test_a_slow_reader_delays_neither_a_publish_nor_another_reader(tmp_path: Path) -> None:
    size_bytes = 96 * CHUNK_BYTES  # more than gRPC's flow control windows hold
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
            await anext(chunks)  # then stops reading

            fetched = [len(chunk.data) async for chunk in client.fetch(transfer)]
            is_new = await client.publish(second[0], delta, split(delta_data))

    assert sum(fetched) == size_bytes
    assert is_new


async def test_every_version_is_restored_after_a_restart(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as address, client_of(address) as client:
        for version in range(3):
            await _publish_full(client, version, seed=version)
        before = await client.versions(POLICY)

    async with weight_store(tmp_path) as address, client_of(address) as client:
        assert await client.versions(POLICY) == before


async def test_the_role_reports_readiness_and_stops_on_request(tmp_path: Path) -> None:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(CONFIG, listen=ListenOptions(token=TOKEN), directory=tmp_path, stop=stop, on_ready=ready.set_result)
    )
    async with client_of(await ready) as client:
        assert await client.versions(POLICY) == ()

    stop.set()
    await serving


async def test_the_role_ends_with_the_error_of_its_background_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = OSError("cannot release")

    def fail(_: WeightStore) -> None:
        raise problem

    monkeypatch.setattr(WeightStore, "release_retired", fail)
    with pytest.raises(ExceptionGroup) as caught:
        await _serve_until_an_error(tmp_path)
    assert caught.value.exceptions == (problem,)


async def test_the_role_ends_when_its_mirror_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(_: Mirror) -> None:
        return

    monkeypatch.setattr(Mirror, "run", end)
    upstream = Upstream(addresses=("127.0.0.1:1",), dial=partial(dial, token=TOKEN))
    with pytest.raises(ExceptionGroup) as caught:
        await _serve_until_an_error(tmp_path, upstream=upstream)
    (problem,) = caught.value.exceptions
    assert isinstance(problem, InternalError)
    assert problem.code == "weights.background_work_ended"


async def test_an_error_of_the_user_of_a_store_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with weight_store(tmp_path):
            raise ZeroDivisionError


async def _serve_until_an_error(directory: Path, *, upstream: Upstream | None = None) -> None:
    """Runs a store that no test stops."""
    listen = ListenOptions(token=TOKEN, drain_s=0.2)
    async with asyncio.timeout(30):
        await serve(
            CONFIG, listen=listen, directory=directory, stop=asyncio.Event(), on_ready=lambda _: None, upstream=upstream
        )


async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with weight_store(tmp_path) as address, dial(address, token="wrong") as link:
        with pytest.raises(NotAuthenticated):
            await WeightPlaneClient(link).versions(POLICY)


async def test_concurrent_publishers_of_one_version_store_it_once(client: WeightPlaneClient) -> None:
    results = await asyncio.gather(*(_publish_full(client, 0) for _ in range(4)))

    assert sorted(results) == [False, False, False, True]


async def test_one_of_several_different_publishes_succeeds(client: WeightPlaneClient) -> None:
    results = await asyncio.gather(*(_publish_full(client, 0, seed) for seed in range(3)), return_exceptions=True)

    assert sum(result is True for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 2
