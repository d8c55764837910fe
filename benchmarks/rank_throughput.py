"""Throughput of training ranks on a CPU, one thread each, and what checkpoints and publishing take of a step.

    python -m benchmarks.rank_throughput [--ranks 1 2] [--repeats 3] [--steps 3]

Each number of ranks is a process of its own with the `fsdp` backend over gloo, and they alternate. All train the same
rows with the same Qwen3 of 11 million parameters. `publish` and `checkpoint` are the pauses of the step: the copy of
the rounded weights to the staging buffer, and the copy of the optimizer's state to host memory; both are written and
sent during the next step. Also prints the imbalance and the padding of plans for 8 ranks, which need no ranks.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from astraflow.contract.batches import Batch
from astraflow.models import models
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.fsdp import FsdpBackend
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.planner import StepPlanner
from astraflow.weights.publish.staging_buffers import StagedVersion, StagingBufferPool
from astraflow.weights.tensors import lay_out
from benchmarks.trainer_step.loops import ALGORITHM
from benchmarks.trainer_step.rows import batch_of

MODEL = {
    "kind": "tiny",
    "hidden_size": 384,
    "layers": 6,
    "heads": 6,
    "key_value_heads": 2,
    "intermediate_size": 1152,
    "max_context_tokens": 2048,
}
VOCABULARY = 128
PHASES = ("forward_backward_s", "optimizer_s")
"""Metrics of a step, seconds of the first rank."""
ROWS, LONGEST = 256, 2000
PLANNED_RANKS = 8


def rows() -> Batch:
    """Returns 8 groups of 8 rows: a prompt of 32 tokens, and answers of lognormal lengths."""
    lengths = np.random.default_rng(2).lognormal(np.log(96), 0.8, (8, 8)).clip(8, 600)
    return batch_of([(32, [int(length) for length in group]) for group in lengths], VOCABULARY)


def plan_facts(micro_batch_tokens: int) -> tuple[float, float]:
    """Returns imbalance (highest over mean FLOPs) and padding share of a plan of 256 lognormal rows for 8 ranks."""
    lengths = np.random.default_rng(1).lognormal(np.log(300), 0.8, ROWS).clip(8, LONGEST)
    planner = StepPlanner(
        ALGORITHM,
        data_ranks=PLANNED_RANKS,
        micro_batch_tokens=micro_batch_tokens,
        cost=ForwardCost.of_model(models.build(MODEL).architecture()),
    )
    facts = planner.plan(batch_of([(16, [int(length)]) for length in lengths], VOCABULARY)).facts
    return facts.imbalance, facts.padding / facts.width


def measure(ranks: int, steps: int) -> dict[str, Any]:
    """Returns the seconds of each step, of each publish and of each checkpoint. Must not run twice in a process."""
    spec = {"kind": "fsdp", "ranks": ranks, "device": "cpu", "learning_rate": 1e-4, "micro_batch_tokens": 4096}
    backend = backends.build(spec, MODEL, ALGORITHM.model_dump(), seed=0)
    assert isinstance(backend, FsdpBackend)
    batch, specs, buffers = rows(), lay_out(backend.published_shapes), StagingBufferPool()
    staged = StagedVersion(specs, buffers.take(sum(spec.size_bytes for spec in specs)))
    parameters = sum(int(np.prod(shape)) for _, shape in backend.published_shapes.values())
    seconds: dict[str, list[float]] = {name: [] for name in ("step", "publish", "checkpoint", *PHASES)}
    for number in range(steps + 1):
        metrics: Mapping[str, float] = {}
        for name, run in (
            ("step", lambda: backend.step(batch)),
            ("publish", lambda: backend.snapshot(staged)),
            ("checkpoint", backend.capture),
        ):
            began = time.perf_counter()
            result = run()
            if number:  # the first allocates memory
                seconds[name].append(time.perf_counter() - began)
            metrics = result if name == "step" and isinstance(result, Mapping) else metrics
        for phase in PHASES if number else ():
            seconds[phase].append(metrics[phase])
    backend.close()
    buffers.close()
    return {"parameters": parameters, "tokens": sum(len(row.trajectory.tokens) for row in batch.rows), **seconds}


def _in_process(ranks: int, steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.rank_throughput", "--measure", str(ranks), "--steps", str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        sys.stdout.write(f"\n{json.dumps(measure(chosen.measure, chosen.steps))}\n")
        return
    results_by_ranks: dict[int, list[dict[str, Any]]] = {ranks: [] for ranks in chosen.ranks}
    for _ in range(chosen.repeats):
        for ranks, results in results_by_ranks.items():
            results.append(_in_process(ranks, chosen.steps))
    sys.stdout.write(
        "| ranks | parameters | tokens/s (lowest to highest) | step | forward and backward | optimizer | publish "
        "| checkpoint |\n|---|---|---|---|---|---|---|---|\n"
    )
    for ranks, results in results_by_ranks.items():
        speeds = [result["tokens"] / statistics.median(result["step"]) for result in results]
        shares = [_share(results, name) for name in ("publish", "checkpoint")]
        sys.stdout.write(
            f"| {ranks} | {results[0]['parameters'] / 1e6:.1f} M | {statistics.median(speeds):,.0f} "
            f"({min(speeds):,.0f} to {max(speeds):,.0f}) | "
            + " | ".join(f"{_median(results, name):.2f} s" for name in ("step", *PHASES))
            + f" | {shares[0]:.2%} | {shares[1]:.2%} |\n"
        )
    for tokens in (4096, 16_384):
        imbalance, padding = plan_facts(tokens)
        sys.stdout.write(
            f"plan for {PLANNED_RANKS} ranks, {ROWS} lognormal rows, packs of {tokens}: FLOPs highest/mean "
            f"{imbalance:.4f}, padding {padding:.2%}\n"
        )


def _share(results: list[dict[str, Any]], name: str) -> float:
    """Returns the share of this pause in steps with it, of the medians."""
    pause_s = _median(results, name)
    return pause_s / (_median(results, "step") + pause_s)


def _median(results: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median([value for result in results for value in result[name]]))


if __name__ == "__main__":
    main()
