"""Training step of the local engine against other loops on the same rows: bare transformers, and TRL's update.

    python -m benchmarks.trainer_step [--against bare trl] [--repeats 5] [--threads 1] [--compile-blocks]
        [--batching rows]

All train the same rows from the same weights with the same loss, alternately in one process. Losses of the first two
steps must agree to 1e-3 before a time counts. Prints medians and spread of the tokens per second of CPU time, which
other processes on the machine disturb least, and the peak memory per trained token at a vocabulary of 151,936, each
measured in its own process. `--against trl` needs TRL: `pip install --no-deps trl==1.16.0`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from astraflow.trainer.engines.base import Batching
from benchmarks.trainer_step.loops import Setting, loops_by_name
from benchmarks.trainer_step.rows import BATCHES, LARGE_VOCABULARY, SMALL_VOCABULARY, batch_of

STEPS_PER_REPEAT = 3
LARGEST_LOSS_DIFFERENCE = 1e-3
MEMORY_TOKENS = (512, 1536)
"""Trained tokens between which the growth of the peak memory is measured."""
GOALS = {
    "bare": {"equal lengths": 0.95, "lognormal lengths": 1.5, "groups of 8, prompt 75 %": 2.5},
    "trl": dict.fromkeys(BATCHES, 2.0),
}
ROWS_GOALS = {"bare": dict.fromkeys(BATCHES, 0.9), "trl": dict.fromkeys(BATCHES, 0.9)}
"""Goals with whole padded rows, as the other loops have."""
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


def measure(
    name: str, others: Sequence[str], repeats: int, setting: Setting, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Returns tokens per second of all loops, by repeat."""
    batch = BATCHES[name]()
    tokens = sum(len(row.trajectory.tokens) for row in batch.rows)
    loops = {kind: loop(setting) for kind, loop in loops_by_name(["local", *others]).items()}
    for _ in range(2):  # also warms up
        losses = [loop.step(batch) for loop in loops.values()]
        if max(losses) - min(losses) > LARGEST_LOSS_DIFFERENCE:
            raise SystemExit(f"{name}: the losses differ: {losses}")
    speeds: dict[str, list[float]] = {kind: [] for kind in loops}
    for _ in range(repeats):
        for kind, loop in loops.items():
            began = clock()
            for _ in range(STEPS_PER_REPEAT):
                loop.step(batch)
            speeds[kind].append(STEPS_PER_REPEAT * tokens / (clock() - began))
    return speeds


def products_per_second(setting: Setting, repeats: int, clock: Callable[[], float]) -> float:
    """Returns the tokens per second of a loop that computed the products of the model's matrices and nothing else.

    Of each linear layer: forward, gradient of the input, gradient of the weight. Without attention, the output head,
    everything that is done element by element, and the optimizer: so it bounds the speed of every loop that computes
    all tokens once.
    """
    tokens = setting.micro_batch_tokens
    layers = [module for module in setting.model().get_decoder().modules() if isinstance(module, torch.nn.Linear)]
    pairs = [(torch.randn(tokens, layer.in_features), torch.randn(tokens, layer.out_features)) for layer in layers]
    seconds = []
    with torch.no_grad():
        for _ in range(repeats + 1):
            began = clock()
            for layer, (inputs, grads) in zip(layers, pairs, strict=True):
                torch.nn.functional.linear(inputs, layer.weight)
                torch.mm(grads, layer.weight)
                torch.mm(grads.T, inputs)
            seconds.append(clock() - began)
    return tokens / statistics.median(seconds[1:])


def peak_bytes(kind: str, trained_tokens: int) -> int:
    """Returns the highest growth of this process's memory during a step with the large vocabulary."""
    batch = batch_of([(64, [192])] * (trained_tokens // 192), LARGE_VOCABULARY)
    loop = loops_by_name([kind])[kind](Setting(vocabulary=LARGE_VOCABULARY, micro_batch_tokens=1 << 20))
    loop.step(batch_of([(4, [4])], LARGE_VOCABULARY))  # allocates the optimizer's state
    before = peak = _resident_bytes()
    is_done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.001):
            peak = max(peak, _resident_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    loop.step(batch)
    is_done.set()
    thread.join()
    return peak - before


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_per_token(kind: str) -> float:
    """Returns the growth of the peak memory per trained token, bytes."""
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-m", "benchmarks.trainer_step", "--peak", kind, str(tokens)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()[-1]
        )
        for tokens in MEMORY_TOKENS
    ]
    return (peaks[1] - peaks[0]) / (MEMORY_TOKENS[1] - MEMORY_TOKENS[0])


def _print_speeds(chosen: argparse.Namespace, results: dict[str, Any]) -> None:
    sys.stdout.write(
        "| rows | local, tokens/s | other loop | tokens/s | ratio (lowest to highest) | goal |\n"
        "|---|---|---|---|---|---|\n"
    )
    setting = Setting(
        vocabulary=SMALL_VOCABULARY,
        micro_batch_tokens=chosen.micro_batch_tokens,
        engine={"compile_blocks": chosen.compile_blocks, "batching": Batching(chosen.batching)},
    )
    goals = ROWS_GOALS if chosen.batching == "rows" else GOALS
    for name in BATCHES if chosen.only is None else [chosen.only] if chosen.only in BATCHES else []:
        speeds = results[name] = measure(name, chosen.against, chosen.repeats, setting, CLOCKS[chosen.clock])
        if name == "equal lengths":
            bound = products_per_second(setting, chosen.repeats, CLOCKS[chosen.clock])
            sys.stdout.write(f"| {name} | {bound:,.0f} with products of matrices alone | | | | |\n")
        for other in chosen.against:
            ratios = [mine / theirs for mine, theirs in zip(speeds["local"], speeds[other], strict=True)]
            sys.stdout.write(
                f"| {name} | {statistics.median(speeds['local']):,.0f} "
                f"| {other} | {statistics.median(speeds[other]):,.0f} "
                f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {goals[other][name]} |\n"
            )
        sys.stdout.flush()


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", nargs="+", choices=GOALS, default=["bare"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="cpu", help="cpu: seconds of CPU, whatever else the machine does; wall"
    )
    parser.add_argument("--compile-blocks", action="store_true", help="option of the local engine")
    parser.add_argument("--batching", choices=("packed", "rows"), default="packed", help="option of the local engine")
    parser.add_argument("--only", choices=[*BATCHES, "memory"])
    parser.add_argument("--peak", nargs=2, metavar=("LOOP", "TOKENS"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.peak:
        sys.stdout.write(f"{peak_bytes(chosen.peak[0], int(chosen.peak[1]))}\n")
        return
    results: dict[str, Any] = {}
    _print_speeds(chosen, results)
    if chosen.only in (None, "memory"):
        memory = results["memory"] = {kind: memory_per_token(kind) for kind in ("local", *chosen.against)}
        local_kb = memory["local"] / 1e3
        for other in chosen.against:
            other_kb = memory[other] / 1e3
            sys.stdout.write(
                f"\nmemory per trained token at a vocabulary of {LARGE_VOCABULARY:,}: local {local_kb:,.0f} kB, "
                f"{other} {other_kb:,.0f} kB, ratio 1/{other_kb / local_kb:.0f} (goal against the bare loop: 1/10)\n"
            )
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
