"""`kill -9` of the store, at any moment, while a trainer publishes and a node follows."""

import asyncio
import random
import socket
import sys
from pathlib import Path

import pytest

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.ids import Version
from astraflow.weights.origins import Origin, Origins
from astraflow.weights.publisher import Publisher
from astraflow.weights.puller import Pulled, Puller
from astraflow.weights.tensors import SnapshotTensors
from tests.weights.running import TOKEN, BriskClock, client_of
from tests.weights.versions import POLICY, history, layout

pytestmark = pytest.mark.anyio

STORE = """
import asyncio, sys
from pathlib import Path
from astraflow.weights.config import WeightsConfig
from astraflow.weights.service import serve
from astraflow.wire.server import Listen

config = WeightsConfig(keep_versions=6, anchor_every=3)
listen = Listen(port=int(sys.argv[2]), token=sys.argv[3])
asyncio.run(serve(config, listen=listen, directory=Path(sys.argv[1]), stop=asyncio.Event(), on_ready=print))
"""
ROOT = Path(__file__).parents[2]
KILLS = 3
VERSIONS = 40


class KillableStore:
    """A store in a process of its own, always on the same port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
            cwd=ROOT,
            stderr=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


async def test_no_published_version_is_lost_and_none_is_wrong(tmp_path: Path) -> None:
    snapshots = history(VERSIONS)
    store = KillableStore(tmp_path)
    acknowledged = asyncio.Event()
    await store.start()
    try:
        async with client_of(store.address) as client, asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(_publish(client, snapshots, acknowledged))
            following = tasks.create_task(_follow(client))
            for _ in range(KILLS):
                await acknowledged.wait()
                await asyncio.sleep(random.uniform(0, 0.02))  # any moment of a publish, not the one between two
                await store.kill()
                await store.start()
                acknowledged.clear()

            await publishing
            followed = await following
            kept = await client.versions(POLICY)
    finally:
        await store.kill()

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


async def _follow(client: WeightPlaneClient) -> list[Pulled]:
    puller = Puller(Origins([Origin("store", [client])]), POLICY, clock=BriskClock())
    followed: list[Pulled] = []
    while puller.committed != VERSIONS - 1:
        followed.append(await puller.newer())
        puller.commit(followed[-1].weights)
    return followed
