"""What two ranks on one host publish shard by shard is what one process publishes, bit for bit."""

from pathlib import Path

import pytest

from tests.trainer.backends.ranks import ended, expected
from tests.trainer.backends.sharding_ranks import POLICY
from tests.weights.running import client_of, weight_store


@pytest.mark.anyio
@pytest.mark.parametrize(("count", "options"), [(2, ()), (3, ()), (2, ("replicas",))])
async def test_ranks_publish_the_bits_that_one_process_publishes(
    tmp_path: Path, count: int, options: tuple[str, ...]
) -> None:
    async with weight_store(tmp_path / "store") as address, client_of(address) as client:
        ranks = await ended(tmp_path / "rendezvous", address, *options, count=count)
        assert [code for code, _, _ in ranks] == [0] * count, ranks

        for manifest in expected():
            assert (await client.plan(POLICY, have=None, want=manifest.version)).manifest == manifest


@pytest.mark.anyio
async def test_a_rank_on_another_host_is_refused_on_every_rank(tmp_path: Path) -> None:
    async with weight_store(tmp_path / "store") as address:
        ranks = await ended(tmp_path / "rendezvous", address, "elsewhere")

    for code, _, said in ranks:
        assert code == 1
        assert "must be on one host" in said


@pytest.mark.anyio
@pytest.mark.parametrize("options", [(), ("spread",)])
async def test_a_tensor_that_is_neither_sharded_nor_replicated_is_refused(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    async with weight_store(tmp_path / "store") as address:
        ((code, _, said),) = await ended(tmp_path / "rendezvous", address, "summed", *options, count=1)

    assert code == 1
    assert "summed is placed as P" in said
    assert "only Shard and Replicate can be published" in said
