"""Methods to write scattered elements of weights in host memory: the lower bound of the pause.

    python -m benchmarks.engine_pause.lower_bound [--elements 536870912] [--density 0.01] [--dtype float32]

All write the same values to the same sorted indices of one flat tensor, on one thread except for the last line.
"""

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

ROUNDS = 7


def ways(elements: int, density: float, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Returns each method by its name."""
    flat = torch.ones(elements, dtype=dtype)
    drawn = np.random.default_rng(0).integers(0, elements, int(elements * density))
    places = np.unique(drawn)
    positions, values = torch.from_numpy(places), torch.rand(len(places)).to(dtype)
    unsigned = {2: torch.uint16, 4: torch.uint32}[flat.element_size()]
    target, bits = flat.view(unsigned).numpy(), values.view(unsigned).numpy()
    middle = len(places) // 2
    pool = ThreadPoolExecutor(2)

    def assign(first: int, last: int) -> None:
        target[places[first:last]] = bits[first:last]

    return {
        "torch scatter_": lambda: flat.scatter_(0, positions, values),
        "torch index_copy_": lambda: flat.index_copy_(0, positions, values),
        "torch index_put_": lambda: flat.index_put_((positions,), values),
        "torch put_": lambda: flat.put_(positions, values),
        "numpy put": lambda: np.put(target, places, bits),
        "numpy assignment": lambda: assign(0, len(places)),
        "numpy assignment, 2 threads": lambda: list(pool.map(assign, (0, middle), (middle, len(places)))),
    }


@torch.inference_mode()
def main() -> None:
    """Prints milliseconds of each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=2**29, help="a gigabyte in bf16")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="what the engine computes in"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name, write in ways(chosen.elements, chosen.density, getattr(torch, chosen.dtype)).items():
        took = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            write()
            took.append((time.perf_counter() - began) * 1e3)
        sys.stdout.write(f"{name:28}  median {np.median(took):7.1f} ms  longest {max(took):7.1f} ms\n")


if __name__ == "__main__":
    main()
