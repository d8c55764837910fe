"""Ranks of a model as processes, and what they should have published."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype, Manifest
from astraflow.models.precision import bits_of
from astraflow.weights.tensors import build_layout
from tests.trainer.backends.sharding_ranks import POLICY, VERSIONS, moved, small

GIVE_UP_S = 120.0


@asynccontextmanager
async def started(
    rendezvous: Path, address: str, *options: str, count: int
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """The ranks while the block runs; those that are left are killed."""
    module = "tests.trainer.backends.sharding_ranks"
    pipe = asyncio.subprocess.PIPE
    found = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, str(rank), str(count), str(rendezvous), address, *options),
            stderr=pipe,
            stdout=pipe,
        )
        for rank in range(count)
    ]
    try:
        yield found
    finally:
        for one in found:
            if one.returncode is None:
                one.kill()
                await one.communicate()


async def ended(rendezvous: Path, address: str, *options: str, count: int = 2) -> list[tuple[int | None, str, str]]:
    """Run them to their end; exit code, what each printed, and what it complained of."""
    async with started(rendezvous, address, *options, count=count) as ranks:
        said = await asyncio.wait_for(asyncio.gather(*(one.communicate() for one in ranks)), GIVE_UP_S)
        return [(one.returncode, out.decode(), error.decode()) for one, (out, error) in zip(ranks, said, strict=True)]


def expected() -> list[Manifest]:
    """What one process would publish, without metadata."""
    model, found = small(), []
    for version in range(VERSIONS):
        tensors = {
            name: (Dtype.BFLOAT16, tuple(weight.shape), bits_of(weight, Dtype.BFLOAT16))
            for name, weight in model.named_parameters()
        }
        found.append(build_layout(tensors, policy=POLICY, version=Version(version))[0])
        moved(dict(model.named_parameters()))
    return found
