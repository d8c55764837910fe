"""Ranks on separate hosts publish one model together, each a part; any of them may be killed."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from astraflow.weights.config import WeightsConfig
from astraflow.weights.signing import SigningKey
from tests.fakes.forking import ForkingProgram
from tests.trainer.backends.ranks import GIVE_UP_S, ended, expected, started
from tests.trainer.backends.sharding_ranks import POLICY, VERSIONS
from tests.weights.running import client_of, weight_store

pytestmark = [pytest.mark.anyio, pytest.mark.long]

CONFIG = WeightsConfig(retained_versions=8, full_snapshot_every=8, multipart_wait_s=0.5)


@pytest.mark.parametrize(("count", "options"), [(2, ()), (3, ()), (2, ("replicas",))])
async def test_ranks_on_several_hosts_publish_the_same_weights_as_one_process(
    rank_python: ForkingProgram, tmp_path: Path, count: int, options: tuple[str, ...]
) -> None:
    key = _key(tmp_path / "weights.key")
    store = weight_store(tmp_path / "store", config=CONFIG, trusted=key.public)
    async with store as address, client_of(address) as client:
        file = f"key={tmp_path / 'weights.key'}"
        ranks = await ended(rank_python, tmp_path / "rendezvous", address, "spread", file, *options, count=count)
        assert [code for code, _, _ in ranks] == [0] * count, ranks

        for manifest in expected():
            served = (await client.plan(POLICY, have=None, want=manifest.version)).manifest
            assert served == key.sign(replace(manifest, metadata={"step": str(manifest.version)}))
        notices = await client.versions(POLICY)

    stats = [[json.loads(line) for line in out.splitlines()] for _, out, _ in ranks]
    for version in range(VERSIONS):
        of_ranks = [rank[version] for rank in stats]
        assert sum(rank_result["part_bytes"] for rank_result in of_ranks) == of_ranks[0]["version_bytes"]
        assert max(rank_result["part_bytes"] for rank_result in of_ranks) < 0.7 * of_ranks[0]["version_bytes"]
        kinds = {rank_result["kind"] for rank_result in of_ranks if rank_result["part_bytes"]}
        assert kinds == {"full" if version == 0 else "delta"}
    assert all(0 < notice.delta_bytes < notice.full_bytes for notice in notices[1:])
    async with weight_store(tmp_path / "store", config=CONFIG) as address, client_of(address) as client:
        assert await client.versions(POLICY) == notices, "rebuilt from the files, each proven"


async def test_a_rank_killed_during_a_publish_leaves_no_partial_version(
    rank_python: ForkingProgram, tmp_path: Path
) -> None:
    async with weight_store(tmp_path / "store", config=CONFIG) as address, client_of(address) as client:
        async with started(rank_python, tmp_path / "first", address, "spread", "dies", count=3) as ranks:
            with capture_logs() as logs:
                assert await asyncio.wait_for(ranks[-1].wait(), GIVE_UP_S) == -9
                while not (release_retired := [log for log in logs if log["event"] == "multipart_publish_dropped"]):  # noqa: ASYNC110 (polls a log)
                    await asyncio.sleep(0.01)
            assert release_retired[0]["version"] == 1
            assert [notice.version for notice in await client.versions(POLICY)] == [0]

        again = await ended(rank_python, tmp_path / "second", address, "spread", count=3)
        assert [code for code, _, _ in again] == [0] * 3, again
        kept = await client.versions(POLICY)
        assert [notice.root_hash for notice in kept] == [manifest.root_hash for manifest in expected()]


def _key(path: Path) -> SigningKey:
    key = SigningKey.generate()
    path.touch(mode=0o600)
    path.write_text(key.text())
    return key
