"""Pause of a trainer for a publish, and the work that overlaps its next step.

    python -m benchmarks.publishing [--sizes 64 256 1024] [--density 0.01] [--versions 6] [--device cuda]

Float32 masters of this many MB of bf16, a share of which changes in a step, are published to a real weight store on
this host over gRPC. `block` is the trainer's whole wait: a buffer, and the copy to it, rounded on the way. `memcpy` is
a plain copy of as many bytes as are read and written, in the same minute: the lower bound. The first two versions, for
which memory is allocated, are shown apart.
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
from astraflow.models.precision import device_of
from astraflow.runtime.logs import configure
from astraflow.trainer.backends.publishing.host_copy import HostCopy
from astraflow.weights.publish.publisher import PublishConfig, Publisher, PublishStats
from tests.weights.running import client_of, weight_store

COLUMNS = 4096
TENSOR_MB = 32
ROW = "{:>8}  {:>7}  {:>6}  {:>8}  {:>7}  {:>7}  {:>7}  {:>7}  {:>9}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTimes:
    """Times of one version: the trainer's wait, and the work outside it."""

    block_s: float
    stats: PublishStats


def masters_of(size_mb: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Returns float32 weights whose rounding to bf16 has this many MB."""
    rows = TENSOR_MB * 2**20 // 2 // COLUMNS
    draws = torch.Generator(device).manual_seed(0)
    return {
        f"layers.{index}.weight": 0.02 * torch.randn(rows, COLUMNS, generator=draws, device=device)
        for index in range(max(1, size_mb // TENSOR_MB))
    }


def step(masters: dict[str, torch.Tensor], density: float, rng: np.random.Generator) -> None:
    """Moves a share of the elements by a bf16 step."""
    for weight in masters.values():
        chosen = torch.from_numpy(rng.integers(0, weight.numel(), int(density * weight.numel()))).to(weight.device)
        flat = weight.view(-1)
        flat[chosen] = flat[chosen] * (1 + 2**-7)


async def measure(
    client: WeightPlaneClient, masters: dict[str, torch.Tensor], chosen: argparse.Namespace
) -> list[PublishTimes]:
    """Measures the versions in order, one at a time."""
    rng, copy, times = np.random.default_rng(1), HostCopy(device_of(chosen.device)), []
    shapes = {name: (Dtype.BFLOAT16, tuple(weight.shape)) for name, weight in masters.items()}
    config = PublishConfig(codec_threads=chosen.threads)
    async with Publisher(client, PolicyId("solver"), config=config) as publisher:
        for version in range(chosen.versions):
            began = time.perf_counter()
            draft = await publisher.begin_version(shapes)
            with draft.open_for_writing() as places:
                copy.write(masters, places, dict.fromkeys(masters, Dtype.BFLOAT16))
            block_s = time.perf_counter() - began
            await publisher.publish(Version(version), draft)
            stats = await publisher.wait()
            if stats is not None:
                times.append(PublishTimes(block_s=block_s, stats=stats))
            step(masters, chosen.density, rng)
    return times


def memcpy_s(masters: dict[str, torch.Tensor]) -> float:
    """Copies as many bytes as the copy of the masters to bf16 reads and writes: 4 and 2 of each element."""
    elements = sum(weight.numel() for weight in masters.values())
    source, target = np.ones(3 * elements, dtype=np.uint8), np.ones(3 * elements, dtype=np.uint8)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        target[:] = source
        took.append(time.perf_counter() - began)
    return float(np.median(took))


async def run(chosen: argparse.Namespace) -> None:
    """Measures one size after the other, each with a store of its own."""
    for size_mb in chosen.sizes:
        masters = masters_of(size_mb, device_of(chosen.device))
        with tempfile.TemporaryDirectory() as folder:
            async with weight_store(Path(folder)) as address, client_of(address) as client:
                measurement = await measure(client, masters, chosen)
        floor = f"{memcpy_s(masters) * 1e3:.1f}"
        for name, took in (("first", measurement[:1]), ("second", measurement[1:2]), ("later", measurement[2:])):
            sys.stdout.write(row(f"{size_mb} MB", name, took, floor))
        sys.stdout.flush()


def row(size: str, name: str, took: list[PublishTimes], floor: str) -> str:
    """Formats medians in milliseconds."""

    def median(values: list[float]) -> str:
        return f"{np.median(values) * 1e3:.1f}"

    stats = [publish.stats for publish in took]
    sent = sum(stat.sent_bytes for stat in stats) / sum(stat.full_bytes for stat in stats)
    return ROW.format(
        size,
        name,
        median([publish.block_s for publish in took]),
        floor,
        median([stat.hash_s for stat in stats]),
        median([stat.encode_s for stat in stats]),
        median([stat.send_s for stat in stats]),
        "yes" if all(stat.is_shared for stat in stats) else "no",
        f"{sent:.2%}",
    )


def main() -> None:
    """Prints three lines for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024], help="MB of bf16 weights")
    parser.add_argument("--density", type=float, default=0.01, help="share of the elements that a step changes")
    parser.add_argument("--versions", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="that hash and encode")
    parser.add_argument("--device", default="cpu", help="where the masters are: cpu, cuda")
    chosen = parser.parse_args()
    configure(level="ERROR")
    torch.set_num_threads(1)
    sys.stdout.write(ROW.format("size", "version", "block", "memcpy", "hash", "encode", "send", "shared", "gRPC"))
    asyncio.run(run(chosen))


if __name__ == "__main__":
    main()
