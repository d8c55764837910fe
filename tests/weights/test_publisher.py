import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import AstraFlowError, Conflict, StorageFull, Unavailable, UnknownVersion
from astraflow.contract.ids import Version
from astraflow.contract.weights import Chunk, Dtype, Manifest, Probe, Transfer, TransferKind
from astraflow.weights.publisher import Publisher, PublishStats
from astraflow.weights.tensors import SnapshotTensors
from tests.weights.running import BriskClock, client_of, weight_store
from tests.weights.versions import POLICY, history, layout, snapshot

pytestmark = pytest.mark.anyio


class ScriptedPlane(WeightPlaneClient):
    """Answers publishes from a list of errors, then accepts; holds them while `gate` is closed."""

    def __init__(self, *problems: AstraFlowError) -> None:
        self.problems = list(problems)
        self.sent: list[Transfer] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def publish(self, manifest: Manifest, transfer: Transfer, chunks: Iterable[Chunk]) -> bool:
        await self.gate.wait()
        assert sum(len(chunk.data) for chunk in chunks) == transfer.size_bytes
        self.sent.append(transfer)
        if self.problems:
            raise self.problems.pop(0)
        return True


def publisher_of(plane: WeightPlaneClient) -> Publisher:
    return Publisher(plane, POLICY, clock=BriskClock())


async def _published(publisher: Publisher, version: int, tensors: SnapshotTensors) -> PublishStats:
    await publisher.publish(Version(version), tensors)
    stats = await publisher.wait()
    assert stats is not None
    return stats


async def test_the_first_version_travels_in_full_and_the_next_as_a_delta(tmp_path: Path) -> None:
    first, second = history(2)
    async with weight_store(tmp_path) as address, client_of(address) as client, publisher_of(client) as publisher:
        full = await _published(publisher, 0, first)
        delta = await _published(publisher, 1, second)

        assert (full.kind, full.sent_bytes, full.is_new) == (TransferKind.FULL, full.full_bytes, True)
        assert (delta.kind, delta.version) == (TransferKind.DELTA, 1)
        assert delta.sent_bytes < delta.full_bytes / 5
        assert (await client.plan(POLICY, have=None)).manifest == layout(second, 1)[0]


async def test_the_probe_and_metadata_travel_along(tmp_path: Path) -> None:
    probe = Probe(tokens=bytes(8), lengths=(2,), scored_from=(1,), logprobs=bytes(4))
    async with weight_store(tmp_path) as address, client_of(address) as client, publisher_of(client) as publisher:
        await publisher.publish(Version(0), snapshot(), probe=probe, metadata={"step": "7"})
        await publisher.wait()

        manifest = (await client.plan(POLICY, have=None)).manifest

    assert (manifest.probe, manifest.metadata) == (probe, {"step": "7"})


async def test_publishing_returns_while_the_version_is_on_its_way() -> None:
    plane = ScriptedPlane()
    plane.gate.clear()
    first, second = history(2)
    async with publisher_of(plane) as publisher:
        assert await publisher.publish(Version(0), first) is None
        following = asyncio.create_task(publisher.publish(Version(1), second))
        await asyncio.sleep(0)
        assert not following.done()

        plane.gate.set()

        before = await following
        assert before is not None
        assert before.version == 0
    assert [transfer.target for transfer in plane.sent] == [0, 1]


async def test_waiting_without_a_publish_in_flight_returns_at_once() -> None:
    async with publisher_of(ScriptedPlane()) as publisher:
        assert await publisher.wait() is None


async def test_a_wait_that_is_cancelled_does_not_cancel_the_publish() -> None:
    plane = ScriptedPlane()
    plane.gate.clear()
    async with publisher_of(plane) as publisher:
        await publisher.publish(Version(0), snapshot())
        waiting = asyncio.create_task(publisher.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        plane.gate.set()
        stats = await publisher.wait()

    assert stats is not None
    assert stats.version == 0


@pytest.mark.parametrize(
    "problem", [Unavailable("away"), StorageFull("full")], ids=lambda problem: type(problem).__name__
)
async def test_a_store_that_is_away_or_full_is_tried_again(problem: AstraFlowError) -> None:
    plane = ScriptedPlane(problem, problem)
    async with publisher_of(plane) as publisher:
        stats = await _published(publisher, 0, snapshot())

    assert stats.is_new
    assert len(plane.sent) == 3


async def test_a_delta_that_the_store_cannot_use_is_followed_by_the_full_snapshot() -> None:
    plane = ScriptedPlane()
    first, second = history(2)
    async with publisher_of(plane) as publisher:
        await _published(publisher, 0, first)
        plane.problems = [UnknownVersion("the store has nothing")]

        stats = await _published(publisher, 1, second)

    assert [transfer.kind for transfer in plane.sent] == [TransferKind.FULL, TransferKind.DELTA, TransferKind.FULL]
    assert (stats.kind, stats.sent_bytes) == (TransferKind.FULL, stats.full_bytes)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_delta_that_is_not_smaller_is_not_sent(seed: int) -> None:
    shapes = {"w": (Dtype.FLOAT8_E5M2, (4000,))}
    plane = ScriptedPlane()
    async with publisher_of(plane) as publisher:
        await _published(publisher, 0, snapshot(0, shapes))
        stats = await _published(publisher, 1, snapshot(seed, shapes))

    assert stats.kind is TransferKind.FULL


async def test_other_tensors_travel_in_full() -> None:
    plane = ScriptedPlane()
    async with publisher_of(plane) as publisher:
        await _published(publisher, 0, snapshot())
        stats = await _published(publisher, 1, {"w": (Dtype.FLOAT32, (2,), np.zeros(2, dtype="<u4"))})

    assert stats.kind is TransferKind.FULL


async def test_a_refusal_rises_where_the_trainer_waits() -> None:
    async with publisher_of(ScriptedPlane(Conflict("other bits"), Conflict("other bits"))) as publisher:
        await publisher.publish(Version(0), snapshot())
        with pytest.raises(Conflict):
            await publisher.wait()

        await publisher.publish(Version(0), snapshot())
        with pytest.raises(Conflict):
            await publisher.publish(Version(1), snapshot())


async def test_leaving_waits_for_the_publish_in_flight() -> None:
    plane = ScriptedPlane()
    async with publisher_of(plane) as publisher:
        await publisher.publish(Version(0), snapshot())

    assert len(plane.sent) == 1


async def test_leaving_on_an_error_cancels_the_publish_in_flight() -> None:
    plane = ScriptedPlane()
    plane.gate.clear()

    with pytest.raises(RuntimeError, match="the trainer broke"):
        async with publisher_of(plane) as publisher:
            await publisher.publish(Version(0), snapshot())
            raise RuntimeError("the trainer broke")

    assert plane.sent == []


async def test_a_trainer_that_restarts_publishes_again_without_harm_and_goes_on_with_deltas(tmp_path: Path) -> None:
    snapshots = history(3)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        async with publisher_of(client) as publisher:
            await _published(publisher, 0, snapshots[0])
            await _published(publisher, 1, snapshots[1])
        async with publisher_of(client) as publisher:
            again = await _published(publisher, 1, snapshots[1])
            following = await _published(publisher, 2, snapshots[2])

        assert (again.is_new, again.kind) == (False, TransferKind.FULL)
        assert (following.is_new, following.kind) == (True, TransferKind.DELTA)
        assert (await client.plan(POLICY, have=None)).manifest == layout(snapshots[2], 2)[0]


async def test_a_store_that_lost_its_disk_gets_the_next_version_in_full(tmp_path: Path) -> None:
    snapshots = history(2)
    async with AsyncExitStack() as stack:
        first_life = await stack.enter_async_context(AsyncExitStack())
        address = await first_life.enter_async_context(weight_store(tmp_path / "first"))
        client = await stack.enter_async_context(client_of(address))
        publisher = await stack.enter_async_context(publisher_of(client))
        await _published(publisher, 0, snapshots[0])
        await first_life.aclose()
        port = int(address.rsplit(":", 1)[1])
        await stack.enter_async_context(weight_store(tmp_path / "second", port=port))

        stats = await _published(publisher, 1, snapshots[1])

        assert stats.kind is TransferKind.FULL
        assert (await client.plan(POLICY, have=None)).manifest == layout(snapshots[1], 1)[0]
