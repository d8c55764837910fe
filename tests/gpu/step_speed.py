"""Speed of one loop's training steps, in a process of its own, so that its peak of memory is known.

    python -m tests.gpu.step_speed --device cuda --shape Qwen3-1.7B --loop local

Prints JSON: for each batch the seconds of each repeat, the loss of the first step, tokens, needed FLOPs, and the peak
of the device's memory. A batch that does not fit into memory has an error instead. A step of the local engine includes
the optimizer and the copy of the rounded weights to the host.
"""

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from astraflow.contract.batches import Batch
from astraflow.models.precision import compute_dtype_of, device_of, torch_dtype_of
from astraflow.trainer.backends.publishing.host_copy import HostCopy
from astraflow.trainer.step.flops import FORWARD_AND_BACKWARD, ForwardCost, peak_flops
from astraflow.trainer.step.packing import pack_units
from astraflow.trainer.step.rows import StepRows
from astraflow.weights.publish.staging_buffers import tensor_views
from tests.benchmarks.trainer_step.loops import LocalLoop, Loop, Setting, loops_by_name
from tests.benchmarks.trainer_step.rows import batch_of
from tests.gpu.shapes import Sizes, sizes_of
from tests.snapshots import draft_of

WARM_UPS = 2
"""Steps before the timed ones: memory is allocated, and blocks are compiled."""


class PublishingLoop:
    """Steps of the local engine, each followed by the copy of the rounded weights off the device."""

    def __init__(self, setting: Setting) -> None:
        self._loop = LocalLoop(setting)
        self._copy = HostCopy(torch.device(setting.device))
        self._dtype = self._loop.engine.published_dtype
        weights = self._loop.engine.weights()
        self._staged = draft_of({name: (self._dtype, tuple(weight.shape)) for name, weight in weights.items()})

    def step(self, batch: Batch) -> float:
        """Trains the batch and copies the weights; returns the loss."""
        loss = self._loop.step(batch)
        views = tensor_views(self._staged.specs, self._staged.buffer.bits)
        self._copy.write(self._loop.engine.weights(), views, torch_dtype_of(self._dtype))
        return loss


def measure(sizes: Sizes, *, device: torch.device, shape: str, name: str) -> dict[str, Any]:
    """Returns the figures of a loop, by the name of the batch."""
    setting = Setting(
        vocabulary=sizes.vocabulary,
        micro_batch_tokens=sizes.micro_batch_tokens,
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
    for batch_name, groups in sizes.rows.items():
        batch = batch_of(groups, sizes.vocabulary)
        try:
            figures[batch_name] = _measure_batch(_builder(name, setting), batch, device, sizes.repeats)
            figures[batch_name].update(_work(batch, cost, device))
        except torch.OutOfMemoryError:
            figures[batch_name] = {"error": "out of memory"}
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return figures


def _builder(name: str, setting: Setting) -> Callable[[], Loop]:
    if name.startswith("local"):
        return lambda: PublishingLoop(setting)
    loop = loops_by_name([name])[name]
    return lambda: loop(setting)


def _measure_batch(build: Callable[[], Loop], batch: Batch, device: torch.device, repeats: int) -> dict[str, Any]:
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
    return {"loss": losses[0], "seconds": seconds, "peak_bytes": peak_bytes(device)}


def _work(batch: Batch, cost: ForwardCost, device: torch.device) -> dict[str, Any]:
    """Returns tokens and needed FLOPs of a batch: a shared prompt is computed once."""
    units = pack_units(StepRows.of(batch), range(len(batch.rows)), max_tokens=1 << 40)
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
    chosen = parser.parse_args()
    device = device_of(chosen.device)
    figures = measure(sizes_of(device.type), device=device, shape=chosen.shape, name=chosen.loop)
    sys.stdout.write("\n" + json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
