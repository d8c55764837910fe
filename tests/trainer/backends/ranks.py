"""Processes of a model's ranks, and the manifests that they are expected to publish."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype, Manifest
from astraflow.models.precision import bits_of
from astraflow.weights.tensors import build_layout
from tests.fakes.forking import ForkingProgram
from tests.trainer.backends.sharding_ranks import POLICY, VERSIONS, moved, small

GIVE_UP_S = 120.0
PROGRAM = "tests.trainer.backends.sharding_ranks"


@asynccontextmanager
async def started(
    program: ForkingProgram, rendezvous: Path, address: str, *options: str, count: int
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Starts the ranks; kills those that still run at the end of the block."""
    pipe = asyncio.subprocess.PIPE
    ranks = [
        await asyncio.create_subprocess_exec(
            *(*program.command, "-m", PROGRAM, str(rank), str(count), str(rendezvous), address, *options),
            stderr=pipe,
            stdout=pipe,
        )
        for rank in range(count)
    ]
    try:
        yield ranks
    finally:
        for process in ranks:
            if process.returncode is None:
                process.kill()
                await process.communicate()


async def ended(
    program: ForkingProgram, rendezvous: Path, address: str, *options: str, count: int = 2
) -> list[tuple[int | None, str, str]]:
    """Runs the ranks to their end; returns exit code, standard output and standard error of each."""
    async with started(program, rendezvous, address, *options, count=count) as ranks:
        outputs = await asyncio.wait_for(asyncio.gather(*(rank.communicate() for rank in ranks)), GIVE_UP_S)
        return [
            (process.returncode, out.decode(), error.decode())
            for process, (out, error) in zip(ranks, outputs, strict=True)
        ]


def expected() -> list[Manifest]:
    """Returns the manifests that one process would publish, without metadata."""
    model, manifests = small(), []
    for version in range(VERSIONS):
        tensors = {
            name: (Dtype.BFLOAT16, tuple(weight.shape), bits_of(weight, Dtype.BFLOAT16))
            for name, weight in model.named_parameters()
        }
        manifests.append(build_layout(tensors, policy=POLICY, version=Version(version))[0])
        moved(dict(model.named_parameters()))
    return manifests
