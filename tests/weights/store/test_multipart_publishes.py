"""Versions published in parts: complete and verified, or not stored at all."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, Unavailable, UnknownVersion
from astraflow.contract.weights import Chunk, Dtype, Manifest, Part, Transfer, TransferKind
from astraflow.weights import shared_memory
from astraflow.weights.codec.chunks import split, transfer_of, unhashed_transfer
from astraflow.weights.codec.delta import encode_delta
from astraflow.weights.publish.part_publisher import PartPublisher, PartStats
from astraflow.weights.store.multipart_upload import PartUpload
from astraflow.weights.tensors import Buffer, SnapshotTensors, lay_out, part_covering, part_manifest, split_by_bytes
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.weights import versions
from tests.weights.running import CONFIG, BriskClock, client_of, weight_store
from tests.weights.versions import MIXED, POLICY, layout, stepped

pytestmark = pytest.mark.anyio

SHAPES = {**MIXED, **{f"layer.{at}": (Dtype.BFLOAT16, (40 + at, 50)) for at in range(4)}}


def snapshot(seed: int = 0) -> SnapshotTensors:
    return versions.snapshot(seed, SHAPES)


def history(count: int) -> list[SnapshotTensors]:
    snapshots = [snapshot()]
    while len(snapshots) < count:
        snapshots.append(stepped(snapshots[-1], len(snapshots)))
    return snapshots


PLACED: list[PartUpload] = []
"""Uploaded parts that a store has placed."""


@pytest.fixture(autouse=True)
def placing(monkeypatch: pytest.MonkeyPatch) -> None:
    write = PartUpload.write

    def noted(part: PartUpload) -> None:
        write(part)
        PLACED.append(part)

    monkeypatch.setattr(PartUpload, "write", noted)


@pytest.fixture(autouse=True)
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directory in shared memory that no other process uses."""
    with tempfile.TemporaryDirectory(dir=shared_memory.SHARED_FOLDER, prefix="test-") as folder:
        monkeypatch.setattr(shared_memory, "SHARED_FOLDER", Path(folder))
        yield Path(folder)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def client(tmp_path: Path, clock: ManualClock) -> AsyncIterator[WeightPlaneClient]:
    async with weight_store(tmp_path, clock=clock) as address, client_of(address) as client:
        yield client


def parts_of(manifest: Manifest, count: int = 3) -> list[Part]:
    return [part for specs in split_by_bytes(manifest.tensors, count) if (part := part_covering(specs)) is not None]


async def send(client: WeightPlaneClient, manifest: Manifest, buffer: Buffer, part: Part) -> bool:
    """Sends a whole part."""
    bits = buffer[part.offset : part.end]
    return await client.publish_part(
        manifest, part, unhashed_transfer(part_manifest(manifest, part)), split(bits.data, chunk_bytes=700)
    )


async def send_all(client: WeightPlaneClient, manifest: Manifest, buffer: Buffer) -> list[bool]:
    return await asyncio.gather(*(send(client, manifest, buffer, part) for part in parts_of(manifest)))


def delta_of(base: tuple[Manifest, Buffer], target: tuple[Manifest, Buffer], part: Part) -> tuple[Transfer, bytes]:
    old, new = part_manifest(base[0], part), part_manifest(target[0], part)
    data = encode_delta(old, base[1][part.offset : part.end], new, target[1][part.offset : part.end]).data
    return transfer_of(new, data, base=old.version), data


@asynccontextmanager
async def held_up(
    client: WeightPlaneClient, manifest: Manifest, buffer: Buffer, parts: Iterable[Part]
) -> AsyncIterator[list[asyncio.Task[bool]]]:
    """Starts publishers that have sent their parts and wait for the others."""
    before = len(PLACED)
    sending = [asyncio.create_task(send(client, manifest, buffer, part)) for part in parts]
    try:
        while len(PLACED) < before + len(sending):  # noqa: ASYNC110 (written by the store's threads)
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # until its event loop is notified
        yield sending
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def test_a_version_is_complete_with_its_last_part(client: WeightPlaneClient) -> None:
    manifest, buffer = layout(snapshot())
    first, *rest = parts_of(manifest)
    assert len(rest) == 2
    async with held_up(client, manifest, buffer, rest) as waiting:
        assert not any(notice.done() for notice in waiting)
        assert await client.versions(POLICY) == ()
        assert await send(client, manifest, buffer, first)
        assert await asyncio.gather(*waiting) == [True, True]
    assert (await client.plan(POLICY, have=None)).manifest == manifest
    assert await send_all(client, manifest, buffer) == [False] * 3, "sent again after a restart"


async def test_parts_are_sent_as_deltas_on_the_previous_version(client: WeightPlaneClient) -> None:
    first, second = (layout(tensors, version) for version, tensors in enumerate(history(2)))
    await send_all(client, *first)
    files = [(part, *delta_of(first, second, part)) for part in parts_of(second[0])]
    assert sum(len(data) for _, _, data in files) < second[0].size_bytes / 4
    sent = (client.publish_part(second[0], part, transfer, split(data)) for part, transfer, data in files)
    assert await asyncio.gather(*sent) == [True] * 3
    (step,) = (await client.plan(POLICY, have=first[0].version)).transfers
    assert step.kind is TransferKind.DELTA


async def test_a_missing_part_fails_the_other_publishers_with_its_range(
    client: WeightPlaneClient, clock: ManualClock, shared_folder: Path
) -> None:
    manifest, buffer = layout(snapshot())
    first, middle, last = parts_of(manifest)
    async with held_up(client, manifest, buffer, [first, last]) as waiting:
        clock.advance(CONFIG.multipart_wait_s + 1)
        with raises_code(Unavailable, "weights.parts_missing", f"bytes {middle.offset} to {middle.end}"):
            await waiting[0]
        with pytest.raises(Unavailable):
            await waiting[1]
    assert await client.versions(POLICY) == ()
    assert list(shared_folder.iterdir()) == []
    assert await send_all(client, manifest, buffer) == [True] * 3


async def test_the_part_of_a_disconnected_publisher_is_missing_again(client: WeightPlaneClient) -> None:
    manifest, buffer = layout(snapshot())
    first, middle, last = parts_of(manifest)
    async with held_up(client, manifest, buffer, [first]):
        async with held_up(client, manifest, buffer, [middle]):
            pass
        async with held_up(client, manifest, buffer, [last]):
            assert await client.versions(POLICY) == ()
            assert await send(client, manifest, buffer, middle)


async def test_a_truncated_part_is_refused(client: WeightPlaneClient) -> None:
    manifest, buffer = layout(snapshot())
    first, *rest = parts_of(manifest)
    cut = split(buffer[first.offset : first.end - 1].data, chunk_bytes=700)
    async with held_up(client, manifest, buffer, rest) as waiting:
        with raises_code(CorruptData, "weights.incomplete_file"):
            await client.publish_part(manifest, first, unhashed_transfer(part_manifest(manifest, first)), cut)
        assert not any(notice.done() for notice in waiting)
        assert await send(client, manifest, buffer, first)


async def test_a_version_that_differs_from_its_manifest_is_refused_to_all_publishers(client: WeightPlaneClient) -> None:
    manifest, buffer = layout(snapshot())
    wrong = buffer.copy()
    wrong[5] ^= 1
    errors = await asyncio.gather(
        *(send(client, manifest, wrong, part) for part in parts_of(manifest)), return_exceptions=True
    )
    assert [type(error) for error in errors] == [CorruptData] * 3
    assert await client.versions(POLICY) == ()
    assert await send_all(client, manifest, buffer) == [True] * 3


async def test_parts_that_overlap_or_cut_a_tensor_are_refused(client: WeightPlaneClient) -> None:
    manifest, buffer = layout(snapshot())
    first, second, _ = parts_of(manifest)
    both = Part(offset=first.offset, size_bytes=first.size_bytes + second.size_bytes)
    async with held_up(client, manifest, buffer, [first]):
        with raises_code(InvalidInput, "weights.part_overlaps"):
            await send(client, manifest, buffer, both)
        torn = Part(offset=second.offset, size_bytes=second.size_bytes - 1)
        with pytest.raises(InvalidInput) as caught:
            await client.publish_part(manifest, torn, unhashed_transfer(manifest), iter(()))
        assert caught.value.code == "weights.part_splits_tensor"


async def test_the_later_of_two_publishers_of_one_part_counts(client: WeightPlaneClient) -> None:
    """Simulates a broken connection that the store has not noticed yet."""
    manifest, buffer = layout(snapshot())
    first, *rest = parts_of(manifest)
    begun = asyncio.Event()

    def slowly() -> Iterator[Chunk]:
        chunks = list(split(buffer[first.offset : first.end].data, chunk_bytes=700))
        yield chunks[0]
        begun.set()
        yield from chunks[1:]

    async with held_up(client, manifest, buffer, rest) as waiting:
        stuck = asyncio.create_task(
            client.publish_part(manifest, first, unhashed_transfer(part_manifest(manifest, first)), slowly())
        )
        await begun.wait()
        assert await send(client, manifest, buffer, first)
        assert await asyncio.gather(*waiting) == [True, True]
        await asyncio.gather(stuck, return_exceptions=True)
    assert (await client.plan(POLICY, have=None)).manifest == manifest


async def test_a_restarted_trainer_with_other_weights_takes_over(client: WeightPlaneClient) -> None:
    stale, fresh = layout(snapshot(1)), layout(snapshot(2))
    async with held_up(client, *stale, parts_of(stale[0])[:2]) as waiting:
        assert await send_all(client, *fresh) == [True] * 3
        with pytest.raises(Unavailable) as caught:
            await waiting[0]
        assert caught.value.code == "weights.publish_replaced"
    with pytest.raises(Conflict):
        await send_all(client, *stale)


@pytest.mark.long
async def test_a_part_delta_without_its_base_is_refused_and_sent_in_full(client: WeightPlaneClient) -> None:
    first, second, third = (layout(tensors, version) for version, tensors in enumerate(history(3)))
    await send_all(client, *first)
    part = parts_of(third[0])[0]
    transfer, data = delta_of(second, third, part)
    async with held_up(client, *second, parts_of(second[0])[:1]):
        with pytest.raises(InvalidInput) as caught:
            await client.publish_part(third[0], part, transfer, split(data))
        assert caught.value.code == "weights.version_out_of_order"
    senders = [PartPublisher(client, POLICY, clock=BriskClock()) for _ in range(3)]
    stats = await _published(senders, *first)
    assert not any(stat.is_new for stat in stats)
    assert {stat.kind for stat in stats} == {TransferKind.FULL}
    assert {delta.kind for delta in await _published(senders, *second)} == {TransferKind.DELTA}
    senders[1] = PartPublisher(client, POLICY, clock=BriskClock())
    assert [delta.kind for delta in await _published(senders, *third)] == [
        TransferKind.DELTA,
        TransferKind.FULL,
        TransferKind.DELTA,
    ]


async def test_a_part_delta_on_an_older_version_is_refused(client: WeightPlaneClient) -> None:
    first, second, third = (layout(tensors, version) for version, tensors in enumerate(history(3)))
    await send_all(client, *first)
    await send_all(client, *second)
    part = parts_of(third[0])[0]
    transfer, data = delta_of(first, third, part)
    with pytest.raises(UnknownVersion) as caught:
        await client.publish_part(third[0], part, transfer, split(data))
    assert caught.value.code == "weights.base_not_stored"


async def test_a_part_delta_on_other_weights_is_refused(client: WeightPlaneClient) -> None:
    first, second = (layout(tensors, version) for version, tensors in enumerate(history(2)))
    other = layout(stepped(snapshot(), 9), 0)
    await send_all(client, *first)
    part = parts_of(second[0])[0]
    transfer, data = delta_of(other, second, part)
    with pytest.raises(CorruptData) as caught:
        await client.publish_part(second[0], part, transfer, split(data))
    assert caught.value.code == "weights.base_mismatch"


async def test_waiting_publishers_end_when_the_store_stops(tmp_path: Path) -> None:
    manifest, buffer = layout(snapshot())
    async with AsyncExitStack() as stack:
        async with weight_store(tmp_path) as address:
            client = await stack.enter_async_context(client_of(address))
            waiting = await stack.enter_async_context(held_up(client, manifest, buffer, parts_of(manifest)[:2]))
        with pytest.raises(Unavailable):
            await waiting[0]


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=12), count=st.integers(1, 6))
def test_every_tensor_is_in_exactly_one_part(sizes: list[int], count: int) -> None:
    specs = lay_out({f"t{at}": (Dtype.BFLOAT16, (size,)) for at, size in enumerate(sizes)})
    stretches = split_by_bytes(specs, count)
    assert len(stretches) == count
    assert [spec for stretch in stretches for spec in stretch] == list(specs)


async def _published(senders: list[PartPublisher], manifest: Manifest, buffer: Buffer) -> list[PartStats]:
    pairs = zip(senders, parts_of(manifest), strict=True)
    return await asyncio.gather(
        *(sender.publish(manifest, part, buffer[part.offset : part.end]) for sender, part in pairs)
    )
