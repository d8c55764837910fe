"""Pause of `local_torch` for a version: patched in place against copied whole.

    python -m benchmarks.engine_pause [--sizes 64 256 1024] [--density 0.01] [--threads 1 2] [--rounds 20]

Versions have this many MB in bf16, and a step changes a share of the elements anywhere; the engine holds them in
float32, as on a CPU. Versions come as a puller delivers them, except for the hashes, which are verified before an
engine gets them. `--requests` keeps this many texts running, which are recomputed after each swap: that is `resume`.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.weights import Dtype, Manifest
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.raas.engines.base import LoadTimings
from astraflow.raas.engines.local_torch import LocalTorchEngine, LocalTorchOptions
from astraflow.runtime.logs import configure
from astraflow.weights.tensors import Buffer, VerifiedWeights, lay_out, tensor_bits

HIDDEN = 1024
ROW = "{:>7}  {:8}  {:>7}  {:>8}  {:>8}  {:>8}  {:>8}  {:>11}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the table."""

    size_mb: int
    is_patched: bool
    threads: int


def model_of(size_mb: int) -> dict[str, object]:
    """Returns a transformer with about this many MB of bf16 weights."""
    layer_mb = (4 * HIDDEN**2 + 3 * HIDDEN * 4 * HIDDEN) * 2 / 2**20
    return {
        "kind": "tiny",
        "hidden_size": HIDDEN,
        "heads": 16,
        "key_value_heads": 16,
        "intermediate_size": 4 * HIDDEN,
        "layers": max(1, round(size_mb / layer_mb)),
    }


def versions(model: dict[str, object], *, density: float, is_patched: bool) -> Iterator[VerifiedWeights]:
    """Yields version 0 and the small steps that follow."""
    shapes = {
        name: (Dtype.BFLOAT16, tuple(weight.shape))
        for name, weight in named_weights(models.build(model).architecture()).items()
    }
    specs = lay_out(shapes)
    rng = np.random.default_rng(0)
    buffer: Buffer = np.zeros(sum(spec.size_bytes for spec in specs), dtype=np.uint8)
    for spec in specs:
        tensor_bits(spec, buffer)[:] = rng.integers(0x3C00, 0x3D00, spec.elements, dtype=np.uint16)
    version = Version(0)
    while True:
        manifest = Manifest(policy=PolicyId("solver"), version=version, tensors=specs, root_hash=b"")
        changes = {}
        for spec in specs if version else ():
            chosen = np.flatnonzero(rng.random(spec.elements, dtype=np.float32) < density)
            tensor_bits(spec, buffer)[chosen] ^= 1
            changes[spec.name] = chosen
        is_delta = is_patched and version > 0
        yield VerifiedWeights(
            manifest=manifest,
            buffer=buffer,
            base=Version(version - 1) if is_delta else None,
            changes=changes if is_delta else None,
        )
        version = Version(version + 1)


async def measure(case: Case, *, density: float, rounds: int, requests: int) -> list[LoadTimings]:
    """Measures the loads after the first."""
    model = model_of(case.size_mb)
    engine = LocalTorchEngine(LocalTorchOptions(device="cpu", threads=case.threads), model)
    coming = versions(model, density=density, is_patched=case.is_patched)
    await engine.load(next(coming))
    prompt = np.arange(4, 36, dtype=np.int32)
    endless = Sampling(max_new_tokens=100_000, temperature=1.0)
    running = [asyncio.create_task(engine.generate(f"r-{n}", prompt, endless)) for n in range(requests)]
    try:
        return [await engine.load(await asyncio.to_thread(next, coming)) for _ in range(rounds)]
    finally:
        await engine.close()
        await asyncio.gather(*running)


def row(case: Case, loads: list[LoadTimings]) -> str:
    """Formats median milliseconds of each phase, and the pause at its 99th percentile."""

    def median(phase: str) -> str:
        return f"{np.median([getattr(load, phase) for load in loads]) * 1e3:.1f}"

    stopped = np.quantile([load.stopped_s for load in loads], 0.99) * 1e3
    way = "patched" if case.is_patched else "copied"
    phases = (median(phase) for phase in ("stage_s", "pause_s", "apply_s", "resume_s"))
    return ROW.format(f"{case.size_mb} MB", way, case.threads, *phases, f"{stopped:.1f}")


def main() -> None:
    """Prints one line for each size, method and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024], help="MB of bf16 weights")
    parser.add_argument("--density", type=float, default=0.01, help="share of the elements that a step changes")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=0)
    chosen = parser.parse_args()
    configure(level="ERROR")
    sys.stdout.write(ROW.format("size", "way", "threads", "stage", "pause", "apply", "resume", "stopped p99"))
    for size_mb in chosen.sizes:
        for is_patched, threads in [*((True, threads) for threads in chosen.threads), (False, chosen.threads[0])]:
            case = Case(size_mb=size_mb, is_patched=is_patched, threads=threads)
            rounds = chosen.rounds if is_patched else max(3, chosen.rounds // 4)
            work = measure(case, density=chosen.density, rounds=rounds, requests=chosen.requests)
            sys.stdout.write(row(case, asyncio.run(work)))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
