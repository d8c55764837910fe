"""Copying the committed version: into a reused buffer, against a fresh one.

    python -m benchmarks.staging_buffer [--mb N] [--density D]

Prints GB of model bytes a second, best of some rounds: `memcpy` between two warm buffers is the lower bound.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, TransferPlan
from astraflow.weights.codec.chunks import transfer_of
from astraflow.weights.codec.delta import encode_delta
from astraflow.weights.shared_memory import BufferPool
from astraflow.weights.tensors import build_layout, verify
from astraflow.weights.transfer.transfer_application import apply_transfers

POLICY = PolicyId("benchmark")
ROUNDS = 7


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--density", type=float, default=0.01)
    arguments = parser.parse_args()
    elements, rng = arguments.mb * 500_000, np.random.default_rng(0)
    bits = rng.integers(0, 2**16, elements, dtype=np.uint16)
    moved = bits + (rng.random(elements) < arguments.density)
    versions = [
        build_layout({"w": (Dtype.BFLOAT16, (elements,), values)}, policy=POLICY, version=Version(number))
        for number, values in enumerate((bits, moved.astype(np.uint16)))
    ]
    (old_manifest, old), (manifest, new) = versions
    data = encode_delta(old_manifest, old, manifest, new).data
    plan = TransferPlan(manifest=manifest, transfers=(transfer_of(manifest, data, base=Version(0)),))
    file, warm, buffers = np.frombuffer(data, dtype=np.uint8), np.zeros_like(old), BufferPool()
    base = (replace(old_manifest), old)
    copies: dict[str, list[float]] = {"stage, buffer used before": [], "stage, fresh buffer": []}
    for _ in range(ROUNDS):
        copies["stage, buffer used before"].append(
            apply_transfers(plan, [file], base=base, into=buffers.acquire(old.nbytes)).copy_s
        )
        copies["stage, fresh buffer"].append(apply_transfers(plan, [file], base=base).copy_s)
    rows = {
        "memcpy, warm": _best(lambda: np.copyto(warm, old)),
        **{name: min(times_s[1:]) for name, times_s in copies.items()},
        "stage and decode": _best(lambda: apply_transfers(plan, [file], base=base, into=buffers.acquire(old.nbytes))),
        "verify": _best(lambda: verify(manifest, new)),
    }
    for name, seconds in rows.items():
        sys.stdout.write(f"{name:28} {old.nbytes / seconds / 1e9:6.2f} GB/s {seconds * 1e3:8.1f} ms\n")


def _best(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began)
    return min(times_s)


if __name__ == "__main__":
    main()
