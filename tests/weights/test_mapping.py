"""A puller maps a version from the shared memory of a source on this host, if its content is verified."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astraflow.contract.ids import Version
from astraflow.contract.weights import SharedFile, TransferPlan
from astraflow.weights.config import PullConfig
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.shared_memory import SharedBuffer
from astraflow.weights.tensors import SnapshotTensors
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources
from tests.weights.rewriting import RewrittenPlane, rewritten
from tests.weights.running import BriskClock, weight_store
from tests.weights.versions import POLICY, history, layout

pytestmark = pytest.mark.anyio


@contextmanager
def in_shared_memory(tensors: SnapshotTensors, version: int) -> Iterator[SharedBuffer]:
    _, buffer = layout(tensors, version)
    shared = SharedBuffer(buffer.nbytes)
    shared.buffer[:] = buffer
    try:
        yield shared
    finally:
        shared.unlink()


def _offering(plane: RewrittenPlane, file: SharedFile) -> None:
    async def offered(plan: TransferPlan) -> TransferPlan:
        return replace(plan, shared=file)

    plane.on_plan = offered


def _puller(plane: RewrittenPlane, config: PullConfig | None = None) -> Puller:
    return Puller(WeightSources([WeightSource("store", [plane])]), POLICY, config=config, clock=BriskClock())


async def _publish(plane: RewrittenPlane, *tensors: SnapshotTensors) -> None:
    async with Publisher(plane, POLICY) as publisher:
        for version, version_tensors in enumerate(tensors):
            await publisher.publish(Version(version), version_tensors)


async def test_shared_memory_of_the_same_host_is_mapped_without_a_copy(tmp_path: Path) -> None:
    tensors = history(2)
    async with weight_store(tmp_path) as address, rewritten(address) as plane:
        await _publish(plane, tensors[0])
        puller = _puller(plane)
        puller.commit((await puller.pull_newer()).weights)
        async with Publisher(plane, POLICY) as publisher:
            await publisher.publish(Version(1), tensors[1])
        plane.fetched.clear()
        with in_shared_memory(tensors[1], 1) as shared:
            _offering(plane, shared.file)
            pulled = await puller.pull_newer()

            assert np.array_equal(pulled.weights.buffer, layout(tensors[1], 1)[1])
            assert not pulled.weights.buffer.flags.writeable
            assert plane.fetched == []
            stats = pulled.stats
            assert (stats.shared_bytes, stats.full_bytes, stats.delta_bytes) == (stats.version_bytes, 0, 0)
            assert pulled.weights.changes
            assert not shared.reclaim(), "it is in use as long as it serves"


@pytest.mark.parametrize("trouble", ["elsewhere", "gone", "other bits", "too short", "another file", "unwanted"])
async def test_versions_that_cannot_be_mapped_are_fetched(tmp_path: Path, trouble: str) -> None:
    tensors, config = history(2), None
    async with weight_store(tmp_path) as address, rewritten(address) as plane:
        await _publish(plane, tensors[0])
        with in_shared_memory(tensors[0], 0) as shared:
            file = shared.file
            match trouble:
                case "elsewhere":
                    file = replace(file, host="another")
                case "gone":
                    shared.unlink()
                case "other bits":
                    shared.buffer[3] ^= 1
                case "too short":
                    file = replace(file, size_bytes=file.size_bytes - 1)
                case "another file":
                    file = replace(file, path="/etc/passwd")
                case "unwanted":
                    config = PullConfig(use_shared_memory=False)
            _offering(plane, file)

            pulled = await _puller(plane, config).pull_newer()

    assert np.array_equal(pulled.weights.buffer, layout(tensors[0], 0)[1])
    assert (pulled.stats.shared_bytes, pulled.stats.full_bytes) == (0, pulled.stats.version_bytes)
    assert plane.fetched
