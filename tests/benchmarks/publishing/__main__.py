"""How long a trainer stands still for a version, and what goes on beside its next step.

    python -m tests.benchmarks.publishing [--sizes 64 256 1024] [--density 0.01] [--versions 6] [--threads 1]

Float32 masters of so many MB of bf16, a share of which changes in a step, are published to a real weight store on this
host over gRPC. `block` is all that the trainer waits for: a draft, and the copy to it, rounded on the way. `memcpy` is
a plain copy of as many bytes as are read and written, in the same minute: the floor. The first two versions, for which
memory is made, are shown apart.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.runtime.logs import configure
from astraflow.trainer.backends.host_copy import HostCopy
from astraflow.weights.publisher import PublishConfig, Publisher, PublishStats
from tests.weights.running import client_of, weight_store

COLUMNS = 4096
TENSOR_MB = 32
ROW = "{:>8}  {:>7}  {:>6}  {:>8}  {:>7}  {:>7}  {:>7}  {:>7}  {:>9}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One version: what the trainer waited for, and what it took beside."""

    block_s: float
    stats: PublishStats


def masters_of(size_mb: int) -> dict[str, torch.Tensor]:
    """Float32 weights whose rounding to bf16 has so many MB."""
    rows = TENSOR_MB * 2**20 // 2 // COLUMNS
    draws = torch.Generator().manual_seed(0)
    return {
        f"layers.{place}.weight": 0.02 * torch.randn(rows, COLUMNS, generator=draws)
        for place in range(max(1, size_mb // TENSOR_MB))
    }


def step(masters: dict[str, torch.Tensor], density: float, rng: np.random.Generator) -> None:
    """Move a share of the elements by a bf16 step."""
    for weight in masters.values():
        chosen = torch.from_numpy(rng.integers(0, weight.numel(), int(density * weight.numel())))
        flat = weight.view(-1)
        flat[chosen] = flat[chosen] * (1 + 2**-7)


async def measure(
    client: WeightPlaneClient, masters: dict[str, torch.Tensor], chosen: argparse.Namespace
) -> list[Took]:
    """The versions in order, one at a time."""
    rng, copy, found = np.random.default_rng(1), HostCopy(torch.device("cpu")), []
    shapes = {name: (Dtype.BFLOAT16, tuple(weight.shape)) for name, weight in masters.items()}
    config = PublishConfig(codec_threads=chosen.threads)
    async with Publisher(client, PolicyId("solver"), config=config) as publisher:
        for version in range(chosen.versions):
            began = time.perf_counter()
            draft = await publisher.draft(shapes)
            with draft.writing() as places:
                copy.write(masters, places, torch.bfloat16)
            block_s = time.perf_counter() - began
            await publisher.publish(Version(version), draft)
            stats = await publisher.wait()
            if stats is not None:
                found.append(Took(block_s=block_s, stats=stats))
            step(masters, chosen.density, rng)
    return found


def memcpy_s(masters: dict[str, torch.Tensor]) -> float:
    """Reads and writes as many bytes as the copy of the masters to bf16: 4 and 2 of each element."""
    elements = sum(weight.numel() for weight in masters.values())
    source, target = np.ones(3 * elements, dtype=np.uint8), np.ones(3 * elements, dtype=np.uint8)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        target[:] = source
        took.append(time.perf_counter() - began)
    return float(np.median(took))


async def run(chosen: argparse.Namespace) -> None:
    """One size after the other, each with a store of its own."""
    for size_mb in chosen.sizes:
        masters = masters_of(size_mb)
        with tempfile.TemporaryDirectory() as folder:
            async with weight_store(Path(folder)) as address, client_of(address) as client:
                found = await measure(client, masters, chosen)
        floor = f"{memcpy_s(masters) * 1e3:.1f}"
        for name, took in (("first", found[:1]), ("second", found[1:2]), ("later", found[2:])):
            sys.stdout.write(row(f"{size_mb} MB", name, took, floor))
        sys.stdout.flush()


def row(size: str, name: str, took: list[Took], floor: str) -> str:
    """Medians in milliseconds."""

    def median(values: list[float]) -> str:
        return f"{np.median(values) * 1e3:.1f}"

    stats = [one.stats for one in took]
    sent = sum(one.sent_bytes for one in stats) / sum(one.full_bytes for one in stats)
    return ROW.format(
        size,
        name,
        median([one.block_s for one in took]),
        floor,
        median([one.hash_s for one in stats]),
        median([one.encode_s for one in stats]),
        median([one.send_s for one in stats]),
        "yes" if all(one.is_shared for one in stats) else "no",
        f"{sent:.2%}",
    )


def main() -> None:
    """Print three lines for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024], help="MB of bf16 weights")
    parser.add_argument("--density", type=float, default=0.01, help="share of the elements that a step changes")
    parser.add_argument("--versions", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="that hash and encode")
    chosen = parser.parse_args()
    configure(level="ERROR")
    torch.set_num_threads(1)
    sys.stdout.write(ROW.format("size", "version", "block", "memcpy", "hash", "encode", "send", "shared", "gRPC"))
    asyncio.run(run(chosen))


if __name__ == "__main__":
    main()
