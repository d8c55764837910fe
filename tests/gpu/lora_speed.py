"""Training steps of the backend `local` with LoRA adapters against all weights, each in a process of its own.

    python -m tests.gpu.lora_speed --device cuda

The model has the layers of the first shape and the small vocabulary of the project's own tokenizer. A step includes
the optimizer and the copy of what is published to the host. Prints one line for each: tokens per second, published
megabytes, peak memory of the device.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from astraflow.models.precision import device_of
from astraflow.trainer.backends import backends
from astraflow.weights.publish.staging_buffers import StagedVersion
from benchmarks.trainer_step.rows import batch_of
from tests.gpu.shapes import sizes_of
from tests.gpu.step_speed import WARM_UPS, await_device, peak_bytes

KINDS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "LoRA of rank 16": {"lora": {"rank": 16, "alpha": 32}},
    "LoRA of rank 64": {"lora": {"rank": 64, "alpha": 128}},
}
VOCABULARY = 100
"""Tokens are drawn below this, which every tokenizer has."""


def measure(device: torch.device, kind: str) -> dict[str, float]:
    """Returns tokens per second, published bytes and peak bytes."""
    sizes = sizes_of(device.type)
    name, shape = next(iter(sizes.shapes.items()))
    model = {
        "kind": "tiny",
        "hidden_size": shape["hidden_size"],
        "layers": shape["num_hidden_layers"],
        "heads": shape["num_attention_heads"],
        "key_value_heads": shape["num_key_value_heads"],
        "intermediate_size": shape["intermediate_size"],
        "max_context_tokens": shape["max_position_embeddings"],
        "initializer_std": 0.02,  # that of the tiny models is meant for their small width
    }
    spec = {"kind": "local", "device": str(device), "micro_batch_tokens": sizes.micro_batch_tokens[name], **KINDS[kind]}
    backend = backends.build(spec, model, {"max_mismatch": None, "advantages": []}, seed=0)
    batch = batch_of(next(iter(sizes.rows.values())), VOCABULARY)
    staged = StagedVersion.private(backend.published_shapes)
    seconds = []
    for number in range(WARM_UPS + sizes.repeats):
        await_device(device)
        began = time.perf_counter()
        backend.step(batch)
        backend.snapshot(staged)
        if number >= WARM_UPS:
            seconds.append(time.perf_counter() - began)
    tokens = sum(len(row.trajectory.tokens) for row in batch.rows)
    published = float(sum(spec.size_bytes for spec in staged.specs))
    return {
        "tokens_per_s": tokens / statistics.median(seconds),
        "published": published,
        "peak": float(peak_bytes(device)),
    }


def main() -> None:
    """Prints a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.kind:
        sys.stdout.write(f"\n{json.dumps(measure(device_of(chosen.device), chosen.kind))}\n")
        return
    for kind in KINDS:
        command = [sys.executable, "-m", "tests.gpu.lora_speed", "--device", chosen.device, "--kind", kind]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        sys.stdout.write(
            f"{kind:18} {figures['tokens_per_s']:10,.0f} tokens/s {figures['published'] / 1e6:9,.2f} MB published "
            f"{figures['peak'] / 2**30:7.2f} GiB peak\n"
        )


if __name__ == "__main__":
    main()
