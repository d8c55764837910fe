import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput, StorageFull, Unavailable, UnknownVersion
from astraflow.contract.ids import Version
from astraflow.contract.weights import Chunk, Dtype, Manifest, Probe, SharedFile, Transfer, TransferKind
from astraflow.weights import shared_memory
from astraflow.weights.publish import staging_buffers
from astraflow.weights.publish.publisher import PublishConfig, Publisher, PublishStats
from astraflow.weights.publish.staging_buffers import MAX_SHARED
from astraflow.weights.shared_memory import PREFIX, map_read_only
from astraflow.weights.tensors import Buffer, SnapshotTensors, shapes_of, verify
from tests.weights.running import BriskClock, client_of, weight_store
from tests.weights.versions import POLICY, history, layout, snapshot

pytestmark = pytest.mark.anyio


class ScriptedPlane(WeightPlaneClient):
    """Store that adopts versions from shared memory if it is on this host, verifies them, and maps the newest one.

    It answers publishes from a list of errors first, and holds them while `gate` is closed.
    """

    def __init__(self, *problems: AstraFlowError, is_on_this_host: bool = False) -> None:
        self.problems = list(problems)
        self.is_on_this_host = is_on_this_host
        self.sent: list[Transfer] = []
        self.shared: list[SharedFile | None] = []
        self.adopted: list[Buffer] = []
        """Mapped versions, which a test releases."""
        self.gate = asyncio.Event()
        self.gate.set()

    async def publish(
        self, manifest: Manifest, transfer: Transfer, chunks: Iterable[Chunk], *, shared: SharedFile | None = None
    ) -> bool:
        await self.gate.wait()
        if shared is not None and not self.is_on_this_host:
            raise UnknownVersion("send the bytes")
        sent_bytes = sum(len(chunk.data) for chunk in chunks)
        assert sent_bytes == (0 if shared and transfer.kind is TransferKind.FULL else transfer.size_bytes)
        self.sent.append(transfer)
        self.shared.append(shared)
        if self.problems:
            raise self.problems.pop(0)
        if shared is not None:
            self.adopted.append(map_read_only(shared))
            verify(manifest, self.adopted[-1])
        return True


def publisher_of(plane: WeightPlaneClient, **config: Any) -> Publisher:
    return Publisher(plane, POLICY, config=PublishConfig(**config), clock=BriskClock())


@pytest.fixture(autouse=True)
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directory in shared memory that no other process uses."""
    with tempfile.TemporaryDirectory(dir=shared_memory.SHARED_FOLDER, prefix="test-") as folder:
        monkeypatch.setattr(shared_memory, "SHARED_FOLDER", Path(folder))
        yield Path(folder)


def buffers_in(folder: Path) -> list[Path]:
    return list(folder.glob(f"{PREFIX}*"))


async def _published(publisher: Publisher, version: int, tensors: SnapshotTensors) -> PublishStats:
    await publisher.publish(Version(version), tensors)
    stats = await publisher.wait()
    assert stats is not None
    return stats


async def test_the_first_version_is_sent_in_full_and_the_next_as_a_delta(tmp_path: Path) -> None:
    first, second = history(2)
    async with (
        weight_store(tmp_path) as address,
        client_of(address) as client,
        publisher_of(client, is_shared=False) as publisher,
    ):
        full = await _published(publisher, 0, first)
        delta = await _published(publisher, 1, second)

        assert (full.kind, full.sent_bytes, full.is_new) == (TransferKind.FULL, full.full_bytes, True)
        assert (delta.kind, delta.version) == (TransferKind.DELTA, 1)
        assert delta.sent_bytes < delta.full_bytes / 5
        assert (full.changed_elements, full.elements) == (0, 0)  # the first version has no predecessor
        assert delta.elements == sum(bits.size for _, _, bits in second.values())
        assert delta.changed_elements == sum(
            int((bits != first[name][2]).sum()) for name, (_, _, bits) in second.items()
        )
        assert (await client.plan(POLICY, have=None)).manifest == layout(second, 1)[0]


async def test_probe_and_metadata_are_published(tmp_path: Path) -> None:
    probe = Probe(tokens=bytes(8), lengths=(2,), scored_from=(1,), logprobs=bytes(4))
    async with weight_store(tmp_path) as address, client_of(address) as client, publisher_of(client) as publisher:
        await publisher.publish(Version(0), snapshot(), probe=probe, metadata={"step": "7"})
        await publisher.wait()

        manifest = (await client.plan(POLICY, have=None)).manifest

    assert (manifest.probe, manifest.metadata) == (probe, {"step": "7"})


async def test_publishing_returns_before_the_version_is_sent() -> None:
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


async def test_waiting_without_a_publish_in_flight_returns_immediately() -> None:
    async with publisher_of(ScriptedPlane()) as publisher:
        assert await publisher.wait() is None


async def test_a_cancelled_wait_does_not_cancel_the_publish() -> None:
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
async def test_a_publish_to_an_unreachable_or_full_store_is_retried(problem: AstraFlowError) -> None:
    plane = ScriptedPlane(problem, problem)
    async with publisher_of(plane) as publisher:
        stats = await _published(publisher, 0, snapshot())

    assert stats.is_new
    assert len(plane.sent) == 3


async def test_a_refused_delta_is_followed_by_the_full_snapshot() -> None:
    plane = ScriptedPlane()
    first, second = history(2)
    async with publisher_of(plane) as publisher:
        await _published(publisher, 0, first)
        plane.problems = [UnknownVersion("the store has nothing")]

        stats = await _published(publisher, 1, second)

    assert [transfer.kind for transfer in plane.sent] == [TransferKind.FULL, TransferKind.DELTA, TransferKind.FULL]
    assert (stats.kind, stats.sent_bytes) == (TransferKind.FULL, stats.full_bytes)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_delta_no_smaller_than_the_snapshot_is_not_sent(seed: int) -> None:
    shapes = {"w": (Dtype.FLOAT8_E5M2, (4000,))}
    plane = ScriptedPlane()
    async with publisher_of(plane) as publisher:
        await _published(publisher, 0, snapshot(0, shapes))
        stats = await _published(publisher, 1, snapshot(seed, shapes))

    assert stats.kind is TransferKind.FULL


async def test_changed_tensors_are_sent_in_full() -> None:
    plane = ScriptedPlane()
    async with publisher_of(plane) as publisher:
        await _published(publisher, 0, snapshot())
        stats = await _published(publisher, 1, {"w": (Dtype.FLOAT32, (2,), np.zeros(2, dtype="<u4"))})

    assert stats.kind is TransferKind.FULL


async def test_a_refusal_is_raised_in_the_waiting_trainer() -> None:
    async with publisher_of(ScriptedPlane(Conflict("other bits"), Conflict("other bits"))) as publisher:
        await publisher.publish(Version(0), snapshot())
        with pytest.raises(Conflict):
            await publisher.wait()

        await publisher.publish(Version(0), snapshot())
        with pytest.raises(Conflict):
            await publisher.publish(Version(1), snapshot())


async def test_closing_waits_for_the_publish_in_flight() -> None:
    plane = ScriptedPlane()
    async with publisher_of(plane) as publisher:
        await publisher.publish(Version(0), snapshot())

    assert len(plane.sent) == 1


async def test_closing_after_an_error_cancels_the_publish_in_flight() -> None:
    plane = ScriptedPlane()
    plane.gate.clear()

    with pytest.raises(RuntimeError, match="broken"):
        async with publisher_of(plane) as publisher:
            await publisher.publish(Version(0), snapshot())
            raise RuntimeError("broken")

    assert plane.sent == []


async def test_a_restarted_trainer_publishes_again_and_continues_with_deltas(tmp_path: Path) -> None:
    snapshots = history(3)
    async with weight_store(tmp_path) as address, client_of(address) as client:
        async with publisher_of(client, is_shared=False) as publisher:
            await _published(publisher, 0, snapshots[0])
            await _published(publisher, 1, snapshots[1])
        async with publisher_of(client, is_shared=False) as publisher:
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
        publisher = await stack.enter_async_context(publisher_of(client, is_shared=False))
        await _published(publisher, 0, snapshots[0])
        await first_life.aclose()
        port = int(address.rsplit(":", 1)[1])
        await stack.enter_async_context(weight_store(tmp_path / "second", port=port))

        stats = await _published(publisher, 1, snapshots[1])

        assert stats.kind is TransferKind.FULL
        assert (await client.plan(POLICY, have=None)).manifest == layout(snapshots[1], 1)[0]


async def test_a_store_on_the_same_host_maps_versions_and_makes_deltas() -> None:
    plane = ScriptedPlane(is_on_this_host=True)
    snapshots = history(3)
    async with publisher_of(plane) as publisher:
        publish_results = [await _published(publisher, version, tensors) for version, tensors in enumerate(snapshots)]

        assert [stats.kind for stats in publish_results] == [TransferKind.FULL] * 3
        assert [(stats.sent_bytes, stats.encode_s) for stats in publish_results] == [(0, 0.0)] * 3
        assert all(stats.is_shared for stats in publish_results)
        for version, tensors in enumerate(snapshots):
            np.testing.assert_array_equal(plane.adopted[version], layout(tensors)[1])
        plane.adopted.clear()


async def test_buffers_are_reused_only_after_readers_release_them() -> None:
    plane = ScriptedPlane(is_on_this_host=True)
    snapshots = history(6)
    async with publisher_of(plane) as publisher:
        for version, tensors in enumerate(snapshots):
            await _published(publisher, version, tensors)
            if version:
                plane.adopted[version - 1] = np.empty(0, dtype=np.uint8)
        newest = {shared.path for shared in plane.shared if shared}
        assert len(newest) <= 3, "buffers are reused"

        kept = plane.adopted[-1]
        for version, tensors in enumerate(history(4, seed=50), start=len(snapshots)):
            await _published(publisher, version, tensors)
        np.testing.assert_array_equal(kept, layout(snapshots[-1])[1])
        del kept
        plane.adopted.clear()


async def test_the_number_of_shared_buffers_is_bounded(shared_folder: Path) -> None:
    plane = ScriptedPlane(is_on_this_host=True)
    snapshots = history(MAX_SHARED + 3)
    async with publisher_of(plane) as publisher:
        stats = [await _published(publisher, version, tensors) for version, tensors in enumerate(snapshots)]

        assert len(buffers_in(shared_folder)) == MAX_SHARED
        assert [stat.is_shared for stat in stats] == [True] * MAX_SHARED + [False] * 3
        plane.adopted.clear()
        await _published(publisher, len(snapshots), snapshots[0])
        again = await _published(publisher, len(snapshots) + 1, snapshots[1])
        assert again.is_shared
        assert len(buffers_in(shared_folder)) <= 3
        plane.adopted.clear()


async def test_a_remote_store_is_offered_shared_memory_once() -> None:
    plane = ScriptedPlane(is_on_this_host=False)
    snapshots = history(3)
    async with publisher_of(plane) as publisher:
        publish_results = [await _published(publisher, version, tensors) for version, tensors in enumerate(snapshots)]

    assert [stats.is_shared for stats in publish_results] == [False] * 3
    assert [transfer.kind for transfer in plane.sent] == [TransferKind.FULL, TransferKind.DELTA, TransferKind.DELTA]
    assert plane.shared == [None] * 3


@pytest.mark.parametrize("problem", [StorageFull("no room"), FileNotFoundError("no /dev/shm")], ids=["full", "missing"])
async def test_without_shared_memory_versions_are_sent_as_bytes(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(size_bytes: int) -> None:
        raise problem

    monkeypatch.setattr(staging_buffers, "SharedBuffer", refused)
    plane = ScriptedPlane(is_on_this_host=True)
    snapshots = history(4)
    with capture_logs() as logs:
        async with publisher_of(plane) as publisher:
            publish_results = [
                await _published(publisher, version, tensors) for version, tensors in enumerate(snapshots)
            ]

    assert [stats.kind for stats in publish_results] == [TransferKind.FULL, *[TransferKind.DELTA] * 3]
    assert plane.shared == [None] * 4
    assert [entry["problem"] for entry in logs if entry["event"] == "weights_not_shared"] == [str(problem)]


async def test_shared_memory_can_be_disabled(shared_folder: Path) -> None:
    plane = ScriptedPlane(is_on_this_host=True)
    async with publisher_of(plane, is_shared=False) as publisher:
        await _published(publisher, 0, snapshot())
        assert not buffers_in(shared_folder)

    assert plane.shared == [None]


async def test_a_staging_buffer_is_published_unchanged() -> None:
    plane = ScriptedPlane(is_on_this_host=True)
    first = snapshot()
    async with publisher_of(plane) as publisher:
        draft = await publisher.begin_version(shapes_of(first))
        with draft.open_for_writing() as places:
            for name, (_, _, bits) in first.items():
                places[name][:] = bits
        await publisher.publish(Version(0), draft)
        stats = await publisher.wait()

        assert stats is not None
        assert stats.copy_s > 0
        assert (await publisher.begin_version(shapes_of(first))).buffer.file != plane.shared[0], "the base is unchanged"
        np.testing.assert_array_equal(plane.adopted[0], layout(first)[1])
        plane.adopted.clear()


async def test_arrays_that_do_not_fit_their_shapes_are_refused() -> None:
    async with publisher_of(ScriptedPlane()) as publisher:
        with pytest.raises(InvalidInput) as caught:
            await publisher.publish(Version(0), {"w": (Dtype.FLOAT32, (2,), np.zeros(3, dtype="<u4"))})
        assert caught.value.code == "weights.shape_mismatch"


@pytest.mark.long
async def test_shared_memory_is_freed_after_a_publisher_closes_or_is_killed(shared_folder: Path) -> None:
    command = [sys.executable, "-c", _KILLED_WHILE_PUBLISHING, str(shared_folder)]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert buffers_in(shared_folder)

    async with publisher_of(ScriptedPlane(is_on_this_host=True)) as publisher:
        assert not buffers_in(shared_folder)
        await _published(publisher, 0, snapshot())
        assert buffers_in(shared_folder)

    assert not buffers_in(shared_folder)


_KILLED_WHILE_PUBLISHING = """
import asyncio, os, signal, sys
from pathlib import Path
from astraflow.weights import shared_memory
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.ids import PolicyId, Version
from astraflow.weights.publish.publisher import Publisher
from tests.weights.versions import snapshot

class Killing(WeightPlaneClient):
    def __init__(self): pass
    async def publish(self, *arguments, **named):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with Publisher(Killing(), PolicyId("solver")) as publisher:
        await publisher.publish(Version(0), snapshot())
        await publisher.wait()

shared_memory.SHARED_FOLDER = Path(sys.argv[1])
asyncio.run(main())
"""
