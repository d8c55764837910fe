"""Asynchronous against synchronous: two policies with long-tailed rollouts, on the real system with simulated GPUs.

    python -m benchmarks.asynchronous [--sensitivity] [--svg FILE] [--json FILE]

The same system runs three times as real processes over loopback gRPC (dataflow, weight store, RaaS nodes, two
trainers), on the same eight simulated GPUs: asynchronously with staleness 8; synchronously, where the next groups begin
when both trainers have stepped and published and a node has loaded both; and so with all GPUs alternating between
generating and training. `benchmarks/asynchronous/experiment.py` states every assumption. Simulated parts sleep
instead of computing; everything else is the product. Takes three minutes; with `--sensitivity`, which also varies how
long the tail is and how fast training is, a quarter of an hour.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from astraflow.runtime.plot import Curve, line_plot
from benchmarks.asynchronous.experiment import (
    MODES,
    PUBLISHED_ASYNCHRONOUS_S,
    PUBLISHED_SYNCHRONOUS_S,
    SOLVER,
    VERIFIER,
    Mode,
    Setting,
)
from benchmarks.asynchronous.measurement import Outcome, measure

BASE = Setting()
VARIANTS = {
    "sigma 0.5": replace(BASE, sigma=0.5),
    "sigma 1.0": BASE,
    "sigma 1.5": replace(BASE, sigma=1.5),
    "training half as fast": replace(BASE, trained_per_gpu_s=BASE.trained_per_gpu_s / 2),
    "training twice as fast": replace(BASE, trained_per_gpu_s=BASE.trained_per_gpu_s * 2),
}
ASYNCHRONOUS_STEPS, SYNCHRONOUS_STEPS = (10, 24), (2, 10)
"""Warm-up and measured steps. The pipeline of the asynchronous mode takes some steps to fill."""


def run_all(setting: Setting, folder: Path, *, seed: int) -> list[Outcome]:
    """Runs every mode in turn."""
    return [_run(setting, mode, folder / mode.name, seed=seed) for mode in MODES]


def table(outcomes: Sequence[Outcome]) -> str:
    """Formats one line per mode, and the published figures."""
    base = outcomes[0].iteration_s
    lines = [
        f"{'':32} {'s/iteration':>11} {'times':>6} {'trainer waits':>17} {'GPUs':>7} {'used by':>18} "
        f"{'rows':>6} {'':>6}",
        f"{'':32} {'median':>11} {'':6} {'solver':>8} {'verifier':>8} {'idle':>7} {'rollouts':>9} {'training':>8} "
        f"{'age':>6} {'stale':>6}",
    ]
    lines += [
        f"{outcome.label:32} {outcome.iteration_s:11.1f} {outcome.iteration_s / base:6.2f} {outcome.wait[SOLVER]:8.1%} "
        f"{outcome.wait[VERIFIER]:8.1%} {outcome.idle:7.1%} {outcome.rollout_use:9.1%} {outcome.train_use:8.1%} "
        f"{outcome.staleness:6.2f} {outcome.stale:6.2%}"
        for outcome in outcomes
    ]
    lines += [
        f"{f'published: {label}':32} {seconds:11.2f} {seconds / PUBLISHED_ASYNCHRONOUS_S:6.2f}"
        for label, seconds in (("asynchronous", PUBLISHED_ASYNCHRONOUS_S), ("colocated", PUBLISHED_SYNCHRONOUS_S))
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def sensitivity_table(by_variant: dict[str, list[Outcome]]) -> str:
    """Formats one line per variant: seconds per iteration in each mode, and the ratio to the asynchronous one."""
    lines = [f"{'':24}" + "".join(f"{mode.name:>20}" for mode in MODES)]
    for name, outcomes in by_variant.items():
        base = outcomes[0].iteration_s
        cells = [f"{f'{outcome.iteration_s:.1f} ({outcome.iteration_s / base:.2f})':>20}" for outcome in outcomes]
        lines.append(f"{name:24}" + "".join(cells))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def plot(outcomes: Sequence[Outcome]) -> str:
    """Draws iterations over time, from the end of the first iteration to the end of the shortest run."""
    until = min(outcome.ended_s[-1] for outcome in outcomes)
    curves = [
        Curve(
            name=outcome.mode,
            points=tuple((ended / 60, float(number)) for number, ended in enumerate(outcome.ended_s) if ended <= until),
        )
        for outcome in outcomes
    ]
    return line_plot(curves, x_label="minutes of the original set-up", y_label="iterations")


def main() -> None:
    """Measures, prints the tables, draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    variants = VARIANTS if arguments.sensitivity else {"sigma 1.0": BASE}
    by_variant: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, setting) in enumerate(variants.items()):
            by_variant[name] = run_all(setting, Path(folder) / str(number), seed=arguments.seed)
            sys.stdout.write(f"{name}\n{table(by_variant[name])}\n")
            sys.stdout.flush()
    if arguments.sensitivity:
        sys.stdout.write(sensitivity_table(by_variant))
    if arguments.svg:
        arguments.svg.write_text(plot(by_variant["sigma 1.0"]))
    if arguments.json:
        outcomes = {name: [asdict(outcome) for outcome in some] for name, some in by_variant.items()}
        arguments.json.write_text(json.dumps({"setting": asdict(BASE), "outcomes": outcomes}, indent=2) + "\n")


def _run(setting: Setting, mode: Mode, folder: Path, *, seed: int) -> Outcome:
    warm_up, steps = SYNCHRONOUS_STEPS if mode.is_synchronous else ASYNCHRONOUS_STEPS
    return measure(setting, mode, folder, warm_up=warm_up, steps=steps, seed=seed)


if __name__ == "__main__":
    main()
