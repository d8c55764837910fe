"""Training step of the local engine against a bare Hugging Face loop: rows padded to the longest, full logits, AdamW.

    python -m tests.benchmarks.trainer_step [--repeats 5] [--threads 1] [--micro-batch-tokens 4096] [--clock wall]

Both train the same rows from the same weights with the same loss, alternately in one process. Losses of the first two
steps must agree to 1e-3 before a time counts. Prints medians and spread of the tokens per second of CPU time, which
other processes on the machine disturb least, and the peak memory per trained token at a vocabulary of 151,936, each
measured in its own process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from astraflow.algorithms.config import AlgorithmConfig
from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.spans import Author, Span
from astraflow.contract.trajectories import Trajectory
from astraflow.contract.weights import Dtype
from astraflow.trainer.engines.local import LocalEngine
from astraflow.trainer.engines.optimizers import OptimizerOptions
from astraflow.trainer.flops import ForwardCost
from astraflow.trainer.steps import StepPlanner, StepRunner

LEARNING_RATE, CLIP, MAX_NORM = 1e-4, 0.2, 1.0
SMALL_VOCABULARY, LARGE_VOCABULARY = 128, 151_936
STEPS_PER_REPEAT = 3
LARGEST_LOSS_DIFFERENCE = 1e-3
MEMORY_TOKENS = (512, 1536)
"""Trained tokens between which the growth of the peak memory is measured."""


def model_of(vocabulary: int) -> PreTrainedModel:
    """Returns a Qwen3 of width 128, with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def batch_of(groups: Sequence[tuple[int, Sequence[int]]], vocabulary: int) -> Batch:
    """groups: length of the prompt, and lengths of the members' answers."""
    draws = np.random.default_rng(0)
    rows = []
    for group, (prompt_length, answers) in enumerate(groups):
        prompt = draws.integers(0, vocabulary, prompt_length)
        for member, length in enumerate(answers):
            rows.append(
                Row(
                    group=GroupId(f"train:{group}"),
                    task=TaskId(f"train:{group}/{member}"),
                    node=NodeId("node-1"),
                    trajectory=Trajectory(
                        policy=PolicyId("solver"),
                        tokens=np.concatenate([prompt, draws.integers(0, vocabulary, length)]).astype(np.int32),
                        logprobs=np.full(length, -np.log(vocabulary), dtype=np.float32),
                        spans=(
                            Span(author=Author.CONTEXT, length=prompt_length),
                            Span(author=Author.MODEL, length=length, version=Version(0)),
                        ),
                        reward=float(draws.normal()),
                    ),
                )
            )
    return Batch(
        id=BatchId("solver:1"), policy=PolicyId("solver"), version=Version(0), is_redelivered=False, rows=tuple(rows)
    )


def lengths_lognormal(rows: int) -> list[int]:
    """Returns lengths with sigma 0.8 and a median of 100 tokens."""
    return [int(length) for length in np.random.default_rng(1).lognormal(np.log(100), 0.8, rows).clip(8, 1000)]


BATCHES: dict[str, Callable[[], Batch]] = {
    "equal lengths": lambda: batch_of([(32, [96])] * 64, SMALL_VOCABULARY),
    "lognormal lengths": lambda: batch_of([(16, [length]) for length in lengths_lognormal(64)], SMALL_VOCABULARY),
    "groups of 8, prompt 75 %": lambda: batch_of([(192, [64] * 8)] * 8, SMALL_VOCABULARY),
}
GOALS = {"equal lengths": 0.95, "lognormal lengths": 1.5, "groups of 8, prompt 75 %": 2.5}


class LocalLoop:
    """Steps of the local engine."""

    def __init__(self, vocabulary: int, micro_batch_tokens: int) -> None:
        model = model_of(vocabulary)
        algorithm = AlgorithmConfig(
            advantages=(), loss={"kind": "ppo", "clip_low": CLIP, "clip_high": CLIP}, max_mismatch=None
        )
        engine = LocalEngine(
            model,
            OptimizerOptions(learning_rate=LEARNING_RATE, grad_clip=MAX_NORM),
            device=torch.device("cpu"),
            published_dtype=Dtype.FLOAT32,
            needs_reference=False,
        )
        self._planner = StepPlanner(
            algorithm, data_ranks=1, micro_batch_tokens=micro_batch_tokens, cost=ForwardCost.of_model(model)
        )
        self._runner = StepRunner(engine, algorithm)

    def step(self, batch: Batch) -> float:
        """Trains the batch; returns the loss."""
        return self._runner.run(self._planner.plan(batch).shares[0]).loss


class BareLoop:
    """The loop that one writes with transformers alone."""

    def __init__(self, vocabulary: int, micro_batch_tokens: int) -> None:
        self._model = model_of(vocabulary)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.999), weight_decay=0.0, fused=True
        )
        self._micro_batch_tokens = micro_batch_tokens

    def step(self, batch: Batch) -> float:
        """Trains the batch; returns the loss."""
        total = sum(row.trajectory.model_tokens for row in batch.rows)
        loss = 0.0
        for rows in self._micro_batches([row.trajectory for row in batch.rows]):
            part = self._loss(rows) / total
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def _micro_batches(self, rows: Sequence[Trajectory]) -> Iterator[Sequence[Trajectory]]:
        width = max(len(row.tokens) for row in rows)
        count = max(1, self._micro_batch_tokens // width)
        return (rows[begin : begin + count] for begin in range(0, len(rows), count))

    def _loss(self, rows: Sequence[Trajectory]) -> torch.Tensor:
        width = max(len(row.tokens) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        is_token = torch.zeros(len(rows), width, dtype=torch.int64)
        is_trained = torch.zeros(len(rows), width, dtype=torch.bool)
        recorded = torch.zeros(len(rows), width)
        for number, row in enumerate(rows):
            length = len(row.tokens)
            ids[number, :length], is_token[number, :length] = torch.from_numpy(row.tokens), 1
            is_trained[number, :length] = torch.from_numpy(row.loss_mask())
            recorded[number, is_trained[number]] = torch.from_numpy(row.logprobs)
        logits = self._model(input_ids=ids, attention_mask=is_token).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = (logprobs - recorded[:, 1:]).exp()
        gain = torch.tensor([row.reward for row in rows])[:, None]
        objective = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
        return -(objective * is_trained[:, 1:]).sum()


CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
LOOPS: dict[str, type[LocalLoop] | type[BareLoop]] = {"local": LocalLoop, "bare": BareLoop}


def measure(name: str, repeats: int, micro_batch_tokens: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Returns tokens per second of both loops, by repeat."""
    batch = BATCHES[name]()
    tokens = sum(len(row.trajectory.tokens) for row in batch.rows)
    loops = {kind: loop(SMALL_VOCABULARY, micro_batch_tokens) for kind, loop in LOOPS.items()}
    for _ in range(2):  # also warms up
        losses = [loop.step(batch) for loop in loops.values()]
        if abs(losses[0] - losses[1]) > LARGEST_LOSS_DIFFERENCE:
            raise SystemExit(f"{name}: the losses differ: {losses}")
    speeds: dict[str, list[float]] = {kind: [] for kind in loops}
    for _ in range(repeats):
        for kind, loop in loops.items():
            began = clock()
            for _ in range(STEPS_PER_REPEAT):
                loop.step(batch)
            speeds[kind].append(STEPS_PER_REPEAT * tokens / (clock() - began))
    return speeds


def peak_bytes(kind: str, trained_tokens: int) -> int:
    """Returns the highest growth of this process's memory during a step with the large vocabulary."""
    batch = batch_of([(64, [192])] * (trained_tokens // 192), LARGE_VOCABULARY)
    loop = LOOPS[kind](LARGE_VOCABULARY, 1 << 20)
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
                [sys.executable, "-m", "tests.benchmarks.trainer_step", "--peak", kind, str(tokens)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for tokens in MEMORY_TOKENS
    ]
    return (peaks[1] - peaks[0]) / (MEMORY_TOKENS[1] - MEMORY_TOKENS[0])


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="cpu", help="cpu: seconds of CPU, whatever else the machine does; wall"
    )
    parser.add_argument("--only", choices=[*BATCHES, "memory"])
    parser.add_argument("--peak", nargs=2, metavar=("LOOP", "TOKENS"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.peak:
        sys.stdout.write(f"{peak_bytes(chosen.peak[0], int(chosen.peak[1]))}\n")
        return
    results: dict[str, Any] = {}
    sys.stdout.write(
        "| rows | local, tokens/s | bare loop, tokens/s | ratio (lowest to highest) | goal |\n|---|---|---|---|---|\n"
    )
    for name in BATCHES if chosen.only is None else [chosen.only] if chosen.only in BATCHES else []:
        speeds = results[name] = measure(name, chosen.repeats, chosen.micro_batch_tokens, CLOCKS[chosen.clock])
        ratios = [mine / bare for mine, bare in zip(speeds["local"], speeds["bare"], strict=True)]
        sys.stdout.write(
            f"| {name} | {statistics.median(speeds['local']):,.0f} | {statistics.median(speeds['bare']):,.0f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {GOALS[name]} |\n"
        )
        sys.stdout.flush()
    if chosen.only in (None, "memory"):
        found = results["memory"] = {kind: memory_per_token(kind) for kind in LOOPS}
        local_kb, bare_kb = found["local"] / 1e3, found["bare"] / 1e3
        sys.stdout.write(
            f"\nmemory per trained token at a vocabulary of {LARGE_VOCABULARY:,}: local {local_kb:,.0f} kB, bare loop "
            f"{bare_kb:,.0f} kB, ratio 1/{bare_kb / local_kb:.0f} (goal 1/10)\n"
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
