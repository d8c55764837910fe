"""Speed of one loop's training steps, in a process of its own, so that its peak of memory is known.

    python -m tests.gpu.step_speed --device cuda --shape Qwen3-1.7B --loop local [--rows 4k] [--kernels 30]

Prints JSON: for each batch the seconds of each repeat, the loss of the first step, tokens, needed FLOPs, size of the
micro-batches, and the peak of the device's memory. A batch that does not fit into memory is tried again with
micro-batches of half the size, down to one row; it has an error instead of figures when that does not fit. A step of
the local engine includes the optimizer and the copy of the rounded weights to the host. `--kernels` writes the
operations that take the most time of one more step to the standard error.
"""

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from astraflow.contract.batches import Batch
from astraflow.models.precision import compute_dtype_of, device_of
from astraflow.trainer.backends.publishing.host_copy import HostCopy
from astraflow.trainer.step.flops import FORWARD_AND_BACKWARD, ForwardCost, peak_flops
from astraflow.trainer.step.packing import pack_units, prefix_trees
from astraflow.trainer.step.rows import StepRows
from astraflow.weights.publish.staging_buffers import StagedVersion
from benchmarks.trainer_step.loops import LocalLoop, Loop, Setting, loops_by_name
from benchmarks.trainer_step.rows import batch_of
from tests.gpu.shapes import Sizes, sizes_of

WARM_UPS = 2
"""Steps before the timed ones: memory is allocated, and blocks are compiled."""


class PublishingLoop:
    """Steps of the local engine, each followed by the copy of the rounded weights off the device."""

    def __init__(self, setting: Setting) -> None:
        self._loop = LocalLoop(setting)
        self._copy = HostCopy(torch.device(setting.device))
        self._dtype = self._loop.engine.published_dtype
        weights = self._loop.engine.weights()
        self._staged = StagedVersion.private(
            {name: (self._dtype, tuple(weight.shape)) for name, weight in weights.items()}
        )

    def step(self, batch: Batch) -> float:
        """Trains the batch and copies the weights; returns the loss."""
        loss = self._loop.step(batch)
        with self._staged.open_for_writing() as views:
            weights = self._loop.engine.weights()
            self._copy.write(weights, views, dict.fromkeys(weights, self._dtype))
        return loss


def measure(
    sizes: Sizes, *, device: torch.device, shape: str, name: str, rows: Collection[str], kernels: int
) -> dict[str, Any]:
    """Returns the figures of a loop, by the name of the batch. rows: names of the batches. kernels: number to list."""
    setting = Setting(
        vocabulary=sizes.vocabulary,
        micro_batch_tokens=sizes.micro_batch_tokens[shape],
        shape=sizes.shapes[shape],
        device=str(device),
        dtype=compute_dtype_of("auto", device),
        optimizer=dict(sizes.optimizer.get(shape, {})),
        engine=dict(sizes.loops[name]),
    )
    if name == "trl" and find_spec("trl") is None:
        return {"error": "TRL is not installed: pip install --no-deps trl==1.16.0"}
    cost = ForwardCost.of_model(replace(setting, device="meta").model())
    figures: dict[str, Any] = {}
    for batch_name in rows:
        batch = batch_of(sizes.rows[batch_name], sizes.vocabulary)
        figures[batch_name] = {"error": "out of memory"}
        for tokens in _micro_batches(setting.micro_batch_tokens, batch):
            build = _builder(name, replace(setting, micro_batch_tokens=tokens))
            with suppress(torch.OutOfMemoryError):
                figures[batch_name] = {
                    **_measure_batch(build, batch, device, sizes.repeats, kernels),
                    **_work(batch, cost, device),
                    "micro_batch_tokens": tokens,
                }
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if "error" not in figures[batch_name]:
                break
    return figures


def _micro_batches(tokens: int, batch: Batch) -> Iterator[int]:
    """Returns the sizes to try: the first, and halves of it until a micro-batch is one row."""
    longest = max(len(row.trajectory.tokens) for row in batch.rows)
    yield tokens
    while tokens > longest:
        tokens //= 2
        yield tokens


def _builder(name: str, setting: Setting) -> Callable[[], Loop]:
    if name.startswith("local"):
        return lambda: PublishingLoop(setting)
    loop = loops_by_name([name])[name]
    return lambda: loop(setting)


def _measure_batch(
    build: Callable[[], Loop], batch: Batch, device: torch.device, repeats: int, kernels: int
) -> dict[str, Any]:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    loop = build()
    losses = [loop.step(batch) for _ in range(WARM_UPS)]
    seconds = []
    for _ in range(repeats):
        await_device(device)
        began = time.perf_counter()
        loop.step(batch)
        await_device(device)
        seconds.append(time.perf_counter() - began)
    if kernels:
        with torch.profiler.profile() as profile:
            loop.step(batch)
            await_device(device)
        by = f"self_{device.type}_time_total"
        sys.stderr.write(profile.key_averages().table(sort_by=by, row_limit=kernels, max_name_column_width=70) + "\n")
    return {"loss": losses[0], "seconds": seconds, "peak_bytes": peak_bytes(device)}


def _work(batch: Batch, cost: ForwardCost, device: torch.device) -> dict[str, Any]:
    """Returns tokens and needed FLOPs of a batch: shared tokens are computed once."""
    rows = StepRows.of(batch)
    units = pack_units(rows, prefix_trees(rows, range(len(batch.rows))), max_tokens=1 << 40)
    return {
        "tokens": sum(len(row.trajectory.tokens) for row in batch.rows),
        "computed_tokens": sum(unit.width for unit in units),
        "flops": FORWARD_AND_BACKWARD * sum(unit.cost(cost) for unit in units),
        "peak_flops": peak_flops(device),
    }


def await_device(device: torch.device) -> None:
    """Waits until the device has computed everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """Returns the highest memory of this process: of the GPU, or of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", required=True)
    parser.add_argument("--loop", required=True)
    parser.add_argument("--rows", nargs="+", help="names of the batches; default: all")
    parser.add_argument("--kernels", type=int, default=0)
    chosen = parser.parse_args()
    device = device_of(chosen.device)
    sizes = sizes_of(device.type)
    figures = measure(
        sizes,
        device=device,
        shape=chosen.shape,
        name=chosen.loop,
        rows=chosen.rows or list(sizes.rows),
        kernels=chosen.kernels,
    )
    sys.stdout.write("\n" + json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
