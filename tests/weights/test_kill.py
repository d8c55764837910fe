"""Kills the store with `kill -9` at random times while a trainer publishes and a node follows."""

import asyncio
import random
import socket
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.ids import Version
from astraflow.runtime.retries import retry
from astraflow.weights.codec.chunks import unhashed_transfer
from astraflow.weights.config import PullConfig
from astraflow.weights.publish.part_publisher import PartPublisher
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.shared_memory import SharedBuffer
from astraflow.weights.store.storage.memory import MemoryOptions, MemoryStorage
from astraflow.weights.tensors import SnapshotTensors, part_covering, split_by_bytes
from astraflow.weights.transfer.puller import PulledVersion, Puller
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources
from astraflow.wire.channel import dial
from astraflow.wire.codecs.converter import to_message
from astraflow.wire.codecs.weights import encode_manifest, encode_transfer
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneStub
from tests.weights.running import TOKEN, BriskClock, client_of
from tests.weights.versions import POLICY, history, layout

pytestmark = [pytest.mark.anyio, pytest.mark.long]

STORE = """
import asyncio, sys
from pathlib import Path
from astraflow.weights.config import WeightsConfig
from astraflow.weights.service import serve
from astraflow.wire.server import ListenOptions

config = WeightsConfig(storage={"kind": sys.argv[4]}, retained_versions=6, full_snapshot_every=3,
                       direct_delta_min_chain=2, retired_version_s=0.2)
listen = ListenOptions(port=int(sys.argv[2]), token=sys.argv[3])
asyncio.run(serve(config, listen=listen, directory=Path(sys.argv[1]), stop=asyncio.Event(), on_ready=print))
"""
ROOT = Path(__file__).parents[2]
KILLS = 3
VERSIONS = 40
GIVE_UP_S = 30.0
"""Longest time that a wait may take before the test fails. Seconds."""


class KillableStore:
    """Store in a separate process, always on the same port."""

    def __init__(self, directory: Path, kind: str = "disk") -> None:
        self._directory = directory
        self._kind = kind
        self._process: asyncio.subprocess.Process | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            STORE,
            str(self._directory),
            str(self._port),
            TOKEN,
            self._kind,
            cwd=ROOT,
            stderr=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("way", ["sent", "adopted", "in parts"])
async def test_no_published_version_is_lost_or_wrong_despite_kills(tmp_path: Path, kind: str, way: str) -> None:
    snapshots = history(VERSIONS)
    store = KillableStore(tmp_path, kind)
    acknowledged = asyncio.Event()
    await store.start()
    try:
        async with client_of(store.address) as client, asyncio.TaskGroup() as tasks:
            ways = {"sent": partial(_publish, client), "in parts": partial(_publish_parts, client)}
            publish = ways.get(way, partial(_share, store.address))
            publishing = tasks.create_task(publish(snapshots, acknowledged))
            following = tasks.create_task(_follow(client))
            for _ in range(KILLS):
                async with asyncio.timeout(GIVE_UP_S):
                    await acknowledged.wait()
                await asyncio.sleep(random.uniform(0, 0.02))  # at any time during a publish, not only between two
                await store.kill()
                await store.start()
                acknowledged.clear()

            await publishing
            async with asyncio.timeout(GIVE_UP_S):
                followed = await following
            kept = await client.versions(POLICY)
    finally:
        await store.kill()
        if kind == "memory":
            MemoryStorage(MemoryOptions(), tmp_path).close()

    assert kept[-1].version == VERSIONS - 1
    assert [notice.root_hash for notice in kept] == [
        layout(snapshots[notice.version], notice.version)[0].root_hash for notice in kept
    ]
    assert followed[-1].weights.manifest.version == VERSIONS - 1
    for pulled in followed:
        version = pulled.weights.manifest.version
        assert pulled.weights.buffer.tobytes() == layout(snapshots[version], version)[1].tobytes()


async def _publish(client: WeightPlaneClient, snapshots: list[SnapshotTensors], acknowledged: asyncio.Event) -> None:
    async with Publisher(client, POLICY, clock=BriskClock()) as publisher:
        for version, tensors in enumerate(snapshots):
            await publisher.publish(Version(version), tensors)
            await publisher.wait()
            acknowledged.set()


async def _publish_parts(
    client: WeightPlaneClient, snapshots: list[SnapshotTensors], acknowledged: asyncio.Event
) -> None:
    """Publishes as two ranks on separate hosts do."""
    senders = [PartPublisher(client, POLICY, clock=BriskClock()) for _ in range(2)]
    for version, tensors in enumerate(snapshots):
        manifest, bits = layout(tensors, version)
        stretches = split_by_bytes(manifest.tensors, len(senders))
        async with asyncio.TaskGroup() as tasks:
            for sender, specs in zip(senders, stretches, strict=True):
                part = part_covering(specs)
                assert part is not None
                tasks.create_task(sender.publish(manifest, part, bits[part.offset : part.end]))
        acknowledged.set()


async def _share(address: str, snapshots: list[SnapshotTensors], acknowledged: asyncio.Event) -> None:
    """Publishes from shared memory as a publisher on the store's host does, with two buffers in turn."""
    buffers = [SharedBuffer(layout(snapshots[0])[0].size_bytes) for _ in range(2)]
    try:
        async with dial(address, token=TOKEN) as link:
            for version, tensors in enumerate(snapshots):
                manifest, bits = layout(tensors, version)
                buffer = await _free(buffers)
                buffer.buffer[:] = bits
                buffer.share()
                head = pb.PublishHead(
                    manifest=encode_manifest(manifest),
                    transfer=encode_transfer(unhashed_transfer(manifest)),
                    shared=to_message(buffer.file, pb.SharedFile),
                )

                async def handed_in(head: pb.PublishHead = head) -> None:
                    pieces = iter([pb.PublishPiece(head=head)])
                    await link.call(WeightPlaneStub(link.channel).Publish, pieces, timeout_s=10)

                await retry(handed_in, what="publishing", clock=BriskClock())
                acknowledged.set()
    finally:
        for buffer in buffers:
            buffer.unlink()


async def _free(buffers: list[SharedBuffer]) -> SharedBuffer:
    """Returns a buffer that the store released: it holds only the newest version once the earlier one has no reader."""
    give_up_at = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_at:
        for buffer in buffers:
            if buffer.reclaim():
                return buffer
        await asyncio.sleep(0.001)
    inodes = [Path(buffer.file.path).stat().st_ino for buffer in buffers]
    raise AssertionError(f"the store lets go of neither buffer: inodes {inodes} in\n{Path('/proc/locks').read_text()}")


async def _follow(client: WeightPlaneClient) -> list[PulledVersion]:
    fetching = PullConfig(
        use_shared_memory=False
    )  # the test retains fetched versions, which would block the publisher's buffers
    puller = Puller(WeightSources([WeightSource("store", [client])]), POLICY, config=fetching, clock=BriskClock())
    followed: list[PulledVersion] = []
    while puller.committed != VERSIONS - 1:
        followed.append(await puller.pull_newer())
        puller.commit(followed[-1].weights)
    return followed
