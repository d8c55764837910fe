"""Cost of the first use of the compiled loops for a trainer that continues meanwhile.

    python -m benchmarks.weights.first_use

A thread compiles the loops while the main thread makes training steps of a small model: once with an empty cache on
disk, once with a filled one. Prints the seconds until the loops are ready, and the duration of the concurrent steps.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.codec.kernels.selection import COMPILED_MIN_BYTES, kernels_for

_STEPS_BEFORE = 40


def main() -> None:
    """Measures in this process when given a label, else in processes of their own."""
    if len(sys.argv) > 1:
        _measure(sys.argv[1])
        return
    print("| | ready after | a step: before | beside it, median | longest |\n|---|---|---|---|---|", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        for name in ("nothing kept", "kept on disk"):
            environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
            subprocess.run([sys.executable, "-m", __spec__.name, name], check=True, env=environment)


def _measure(name: str) -> None:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(256, 512)
    before = [_step(model, optimizer, batch) for _ in range(_STEPS_BEFORE)]
    with ThreadPoolExecutor(1) as pool:
        began = time.perf_counter()
        future: Future[Kernels] = pool.submit(kernels_for, COMPILED_MIN_BYTES)
        beside = []
        while not future.done():
            beside.append(_step(model, optimizer, batch))
        ready_s = time.perf_counter() - began
        kernels_name = type(future.result()).__name__
    shown = [f"{1000 * s:.0f} ms" for s in (statistics.median(before), statistics.median(beside), max(beside))]
    print(f"| {name} ({kernels_name}) | {ready_s:.1f} s | {' | '.join(shown)} |", flush=True)  # noqa: T201


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    began = time.perf_counter()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
