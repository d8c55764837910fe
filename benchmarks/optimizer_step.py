"""Time of an optimizer step, against the time in which memory moves its bytes.

    python -m benchmarks.optimizer_step [--repeats 5]

The weights are those of a model of 135 M parameters (30 layers of width 576). Prints one row per optimizer: median and
spread of the step in milliseconds, the bytes that it must move per parameter, and the bandwidth that this is, next to
the bandwidth of a plain copy.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions

WIDTH, INNER, LAYERS, VOCABULARY = 576, 1536, 30, 49_152
EMBEDDING = "embed"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    elements = sum(weight.numel() for weight in weights(torch.float32).values())
    _row("copy", 8, elements, repeats, lambda: None, _copy_of(elements))
    for name, options, compute, moved in (
        ("AdamW, float32 moments, float32 model", {}, torch.float32, 4 + 28 + 8),
        ("AdamW, float32 moments, bfloat16 model", {}, torch.bfloat16, 4 + 28 + 6),
        ("AdamW, bfloat16 moments, bfloat16 model", {"moments_dtype": "bfloat16"}, torch.bfloat16, 4 + 20 + 6),
        ("AdamW, 8-bit moments, bfloat16 model", {"moments_dtype": "uint8"}, torch.bfloat16, 4 + 16 + 6),
    ):
        _measure(name, OptimizerOptions.parse(options, where=""), compute, moved, elements, repeats)


def weights(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Returns the weights of a decoder with grouped-query attention and tied embeddings."""
    layer = {
        "q": (WIDTH, WIDTH),
        "k": (WIDTH // 3, WIDTH),
        "v": (WIDTH // 3, WIDTH),
        "o": (WIDTH, WIDTH),
        "gate": (INNER, WIDTH),
        "up": (INNER, WIDTH),
        "down": (WIDTH, INNER),
        "norm1": (WIDTH,),
        "norm2": (WIDTH,),
    }
    shapes = {f"{index}.{name}": shape for index in range(LAYERS) for name, shape in layer.items()}
    return {
        name: nn.Parameter(torch.randn(shape).mul_(0.02).to(dtype))
        for name, shape in {EMBEDDING: (VOCABULARY, WIDTH), **shapes}.items()
    }


def _copy_of(elements: int) -> Callable[[], object]:
    source, target = torch.ones(elements), torch.empty(elements)
    return lambda: target.copy_(source)


def _measure(
    name: str, options: OptimizerOptions, compute: torch.dtype, moved: int, elements: int, repeats: int
) -> None:
    model = weights(compute)
    optimizer = MasterOptimizer(model, options, rounded_to=torch.bfloat16, not_matrices={EMBEDDING})

    def prepare() -> None:
        for parameter in model.values():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.accumulate()

    _row(name, moved, elements, repeats, prepare, lambda: optimizer.update(is_loss_finite=True))


def _row(
    name: str, moved: int, elements: int, repeats: int, prepare: Callable[[], object], run: Callable[[], object]
) -> None:
    durations = []
    for _ in range(repeats + 1):
        prepare()
        began = time.perf_counter()
        run()
        durations.append(time.perf_counter() - began)
    kept = durations[1:]
    median = statistics.median(kept)
    sys.stdout.write(
        f"{name:42s} {median * 1e3:7.0f} ms ({min(kept) * 1e3:.0f} to {max(kept) * 1e3:.0f}) "
        f"{moved:3d} bytes/parameter {moved * elements / median / 1e9:6.1f} GB/s\n"
    )


if __name__ == "__main__":
    main()
