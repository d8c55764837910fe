"""What two ranks publish shard by shard is what one process publishes, bit for bit."""

import asyncio
import sys
from pathlib import Path

import pytest

from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype
from astraflow.models.precision import bits_of
from astraflow.weights.tensors import build_layout
from tests.trainer.backends.sharding_ranks import POLICY, VERSIONS, moved, small
from tests.weights.running import client_of, weight_store

GIVE_UP_S = 60.0


async def ranks(rendezvous: Path, address: str, *options: str, count: int = 2) -> list[tuple[int | None, str]]:
    """Run them to their end; exit code and what each said."""
    module = "tests.trainer.backends.sharding_ranks"
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, str(rank), str(count), str(rendezvous), address, *options),
            stderr=asyncio.subprocess.PIPE,
        )
        for rank in range(count)
    ]
    said = await asyncio.wait_for(asyncio.gather(*(one.communicate() for one in started)), GIVE_UP_S)
    return [(one.returncode, error.decode()) for one, (_, error) in zip(started, said, strict=True)]


@pytest.mark.anyio
@pytest.mark.parametrize(("count", "options"), [(2, ()), (3, ()), (2, ("replicas",))])
async def test_ranks_publish_the_bits_that_one_process_publishes(
    tmp_path: Path, count: int, options: tuple[str, ...]
) -> None:
    async with weight_store(tmp_path / "store") as address, client_of(address) as client:
        ended = await ranks(tmp_path / "rendezvous", address, *options, count=count)
        assert [code for code, _ in ended] == [0] * count, ended

        model = small()
        for version in range(VERSIONS):
            tensors = {
                name: (Dtype.BFLOAT16, tuple(weight.shape), bits_of(weight, Dtype.BFLOAT16))
                for name, weight in model.named_parameters()
            }
            expected, _ = build_layout(tensors, policy=POLICY, version=Version(version))
            assert (await client.plan(POLICY, have=None, want=Version(version))).manifest == expected
            moved(dict(model.named_parameters()))


@pytest.mark.anyio
async def test_a_rank_on_another_host_is_refused_on_every_rank(tmp_path: Path) -> None:
    async with weight_store(tmp_path / "store") as address:
        ended = await ranks(tmp_path / "rendezvous", address, "elsewhere")

    for code, said in ended:
        assert code == 1
        assert "must be on one host" in said


@pytest.mark.anyio
async def test_a_tensor_that_is_neither_sharded_nor_replicated_is_refused(tmp_path: Path) -> None:
    async with weight_store(tmp_path / "store") as address:
        ((code, said),) = await ranks(tmp_path / "rendezvous", address, "summed", count=1)

    assert code == 1
    assert "summed is placed as P" in said
    assert "only Shard and Replicate can be published" in said
