"""Ranks on one host or several publish, shard by shard, exactly the bits that one process publishes."""

from pathlib import Path

import pytest

from tests.fakes.forking import ForkingProgram
from tests.trainer.backends.ranks import ended, expected
from tests.trainer.backends.sharding_ranks import POLICY
from tests.weights.running import client_of, weight_store

pytestmark = pytest.mark.long


@pytest.mark.anyio
@pytest.mark.parametrize(("count", "options"), [(2, ()), (3, ()), (2, ("replicas",)), (3, ("elsewhere",))])
async def test_ranks_publish_the_same_weights_as_one_process(
    rank_python: ForkingProgram, tmp_path: Path, count: int, options: tuple[str, ...]
) -> None:
    async with weight_store(tmp_path / "store") as address, client_of(address) as client:
        ranks = await ended(rank_python, tmp_path / "rendezvous", address, *options, count=count)
        assert [code for code, _, _ in ranks] == [0] * count, ranks

        for manifest in expected():
            assert (await client.plan(POLICY, have=None, want=manifest.version)).manifest == manifest


@pytest.mark.anyio
@pytest.mark.parametrize("options", [(), ("spread",)])
async def test_a_tensor_that_is_neither_sharded_nor_replicated_is_refused(
    rank_python: ForkingProgram, tmp_path: Path, options: tuple[str, ...]
) -> None:
    async with weight_store(tmp_path / "store") as address:
        ((code, _, error),) = await ended(rank_python, tmp_path / "rendezvous", address, "summed", *options, count=1)

    assert code == 1
    assert "weights.unsupported_placement" in error
    assert "'summed'" in error
