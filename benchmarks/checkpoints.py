"""Cost of a checkpoint that is written while the next step computes.

    python -m benchmarks.checkpoints FOLDER [--parameters 10 40 135] [--step-s 4] [--copy-gbps B] [--disk-gbps B]

FOLDER is on the disk to measure. For models of several sizes, in millions of parameters, with float32 masters and
moments (12 bytes per parameter): the pause of the step (`capture`), the time until the checkpoint is durable, the CPU
time of the write, and the share of the step that is lost: the pause alone where a core is free for the write, and at
most pause and CPU time where none is. The first two are also predicted from the bandwidths measured at the smallest
size, so that the table shows whether bandwidth explains them; the last row predicts a model of 1.7 B parameters, also
with other bandwidths: those of a GPU's bus and of a server's disk, for instance.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from astraflow.contract.ids import PolicyId
from astraflow.trainer.backends.state.files import CapturedFiles, HostTensors
from astraflow.trainer.checkpoints import CheckpointIdentity, Checkpoints, TrainingProgress
from astraflow.trainer.retention import Retention

BYTES_PER_PARAMETER = 12
LARGE = 1_720
"""Parameters of the extrapolated model. Millions."""

HEAD = "{:>9} {:>9} {:>22} {:>22} {:>12} {:>19}\n"
ROW = "{:>7.0f} M {:>6.2f} GB {:>9.3f} s ({:>6.3f}) {:>10.2f} s ({:>6.2f}) {:>10.2f} s {:>8.2%} - {:>8.2%}\n"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parameters", type=int, nargs="+", default=[10, 40, 135])
    parser.add_argument("--step-s", type=float, default=4.0)
    parser.add_argument("--copy-gbps", type=float, default=None)
    parser.add_argument("--disk-gbps", type=float, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(HEAD.format("model", "state", "capture (predicted)", "durable (predicted)", "CPU", "of the step"))
    rates = (0.0, 0.0, 0.0)
    for millions in sorted(options.parameters):
        size_gb = millions * BYTES_PER_PARAMETER / 1e3
        measured = measure(options.folder / "checkpoint-benchmark", millions)
        rates = rates if all(rates) else (size_gb / measured[0], size_gb / measured[1], size_gb / measured[2])
        _print_row(millions, measured, rates, step_s=options.step_s)
    copy, disk = options.copy_gbps or rates[0], options.disk_gbps or rates[1]
    size_gb = LARGE * BYTES_PER_PARAMETER / 1e3
    rates = (copy, disk, rates[2])
    _print_row(LARGE, (size_gb / copy, size_gb / disk, size_gb / rates[2]), rates, step_s=options.step_s)
    sys.stdout.write(f"last row: copy {copy:.1f} GB/s, disk {disk:.2f} GB/s; step {options.step_s:g} s\n")


def _print_row(
    millions: int, seconds: tuple[float, float, float], rates: tuple[float, float, float], *, step_s: float
) -> None:
    capture_s, write_s, cpu_s = seconds
    size_gb = millions * BYTES_PER_PARAMETER / 1e3
    lost = (capture_s / step_s, (capture_s + cpu_s) / step_s)
    sys.stdout.write(
        ROW.format(millions, size_gb, capture_s, size_gb / rates[0], write_s, size_gb / rates[1], cpu_s, *lost)
    )


def measure(folder: Path, millions: int) -> tuple[float, float, float]:
    """Returns the seconds of a capture, of a write, and the CPU seconds of the write."""
    identity = CheckpointIdentity(policy=PolicyId("policy"), model={}, backend="benchmark")
    checkpoints = Checkpoints(folder, identity, keep=Retention(newest=1))
    tensors = {f"{kind}/{index}": torch.rand(1_000_000) for kind in range(3) for index in range(millions)}
    host = HostTensors()
    host.copy(tensors)  # allocates the memory, once in a process
    capture_s = min(_seconds(lambda: host.copy(tensors)) for _ in range(3))
    state = CapturedFiles(tensors={"tensors.safetensors": host.copy(tensors)}, numbers={})
    progress = TrainingProgress(run="benchmark", step=1, report=None)
    try:
        with checkpoints.exclusive_lock():
            began_cpu_s = time.process_time()
            write_s = _seconds(lambda: checkpoints.save(progress, state.write))
            return capture_s, write_s, time.process_time() - began_cpu_s
    finally:
        shutil.rmtree(folder)


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
