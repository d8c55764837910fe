"""A store and its mirror as processes, started as an operator starts them."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from astraflow.contract.ids import Version
from astraflow.weights.config import PullConfig
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources
from tests.weights.running import TOKEN, client_of
from tests.weights.versions import POLICY, history, layout

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked_programs"), pytest.mark.long]


@contextmanager
def served(directory: Path, more: Sequence[str] = ()) -> Iterator[str]:
    """Yields the address of `astraflow serve weights`."""
    (directory / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "astraflow.cli", "serve", "weights", "smoke"]
    command += ["--directory", str(directory / "kept"), "--token-file", str(directory / "token"), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


async def test_a_node_reads_published_versions_from_a_mirror(tmp_path: Path) -> None:
    store_folder, mirror_folder = tmp_path / "store", tmp_path / "mirror"
    store_folder.mkdir()
    mirror_folder.mkdir()
    snapshots = history(2)
    with served(store_folder) as store, served(mirror_folder, ["--follow", store]) as mirror:
        async with client_of(store) as client, client_of(mirror) as reading, Publisher(client, POLICY) as publisher:
            puller = Puller(
                WeightSources([WeightSource(mirror, [reading])]), POLICY, config=PullConfig(use_shared_memory=False)
            )
            for number, tensors in enumerate(snapshots):
                await publisher.publish(Version(number), tensors)
                pulled = await puller.pull_newer()
                puller.commit(pulled.weights)
                assert np.array_equal(pulled.weights.buffer, layout(tensors, number)[1])
    assert (pulled.stats.base, pulled.stats.full_bytes) == (0, 0)
