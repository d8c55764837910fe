"""Reinforcement learning in one process: engine and backend with nothing between them.

`python -m tests.system.learning` prints how many steps and milliseconds the demo's task takes, for several seeds and
ages of the weights.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.datasets import datasets
from astraflow.models import build_tokenizer
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import Engine
from astraflow.runtime.logs import configure
from astraflow.trainer.backends import backends
from astraflow.trainer.backends.base import Backend
from astraflow.weights.tensors import VerifiedWeights, build_layout
from tests.snapshots import snapshot_of

DATASET: Mapping[str, Any] = {"kind": "letters"}
POLICY = PolicyId("solver")
WINDOW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings of one run."""

    seed: int = 0
    lag: tuple[int, int] = (0, 0)
    """Range of the engine's lag in versions, drawn again after each step."""
    groups: int = 32
    members: int = 8
    learning_rate: float = 5e-4
    target: float = 0.9
    max_steps: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Result of a run."""

    rewards: list[float]
    """Mean reward of each step."""
    prepare_s: float
    """Seconds to build the backend: the warm start, unless it was cached."""
    generate_s: float
    train_s: float
    publish_s: float
    load_s: float
    largest_mismatch: float
    changed_share: float
    """Share of the bf16 elements that change from one version to the next."""

    @property
    def last(self) -> float:
        """Returns the mean reward of the last steps."""
        return statistics.fmean(self.rewards[-WINDOW:])

    @property
    def first(self) -> float:
        """Returns the mean reward of the first steps."""
        return statistics.fmean(self.rewards[:5])


class Learning:
    """A trainer and an engine that alternate."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        model = {"kind": "tiny", "seed": setup.seed, "warm_start": {"dataset": dict(DATASET)}}
        began = time.perf_counter()
        self._backend: Backend = backends.build(
            {"kind": "local", "learning_rate": setup.learning_rate}, model, {}, seed=setup.seed
        )
        self._prepare_s = time.perf_counter() - began
        self._engine: Engine = engines.build({"kind": "local_torch", "seed": setup.seed}, model)
        self._tokenizer: ChatTokenizer = build_tokenizer(model)
        self._dataset = datasets.build(DATASET, setup.seed + 1000)
        self._sampling = Sampling(max_new_tokens=6, stop_tokens=self._tokenizer.stop_tokens)
        self._lags = random.Random(setup.seed)
        self._versions: list[VerifiedWeights] = []
        self._changed: list[float] = []
        self._load_s = self._publish_s = 0.0

    async def run(self) -> Learned:
        """Steps until the mean reward of the last steps reaches the target."""
        rewards: list[float] = []
        mismatches: list[float] = []
        generate_s = train_s = 0.0
        await self._publish_and_load()
        while len(rewards) < self._setup.max_steps:
            began = time.perf_counter()
            batch = await self._batch(len(rewards))
            generated = time.perf_counter()
            metrics = self._backend.step(batch)
            train_s += time.perf_counter() - generated
            generate_s += generated - began
            rewards.append(metrics["reward_mean"])
            if "mismatch_max" in metrics:
                mismatches.append(metrics["mismatch_max"])
            if len(rewards) >= WINDOW and statistics.fmean(rewards[-WINDOW:]) >= self._setup.target:
                break
            await self._publish_and_load()
        await self._engine.close()
        return Learned(
            rewards=rewards,
            prepare_s=self._prepare_s,
            generate_s=generate_s,
            train_s=train_s,
            publish_s=self._publish_s,
            load_s=self._load_s,
            largest_mismatch=max(mismatches, default=0.0),
            changed_share=statistics.fmean(self._changed),
        )

    async def _batch(self, step: int) -> Batch:
        setup = self._setup
        first = step * setup.groups
        prompts = [self._dataset.prompt((first + number) % self._dataset.size) for number in range(setup.groups)]
        groups = await asyncio.gather(*(self._group(f"{first + n}", prompt) for n, prompt in enumerate(prompts)))
        return Batch(
            id=BatchId(f"{POLICY}:{step + 1}"),
            policy=POLICY,
            version=Version(step),
            is_redelivered=False,
            rows=tuple(row for group in groups for row in group),
        )

    async def _group(self, name: str, prompt: Prompt) -> list[Row]:
        question = self._tokenizer.encode_chat([{"role": "user", "content": str(prompt.fields["question"])}])
        tasks = [TaskId(f"train:{name}/{member}") for member in range(self._setup.members)]
        generations = await asyncio.gather(*(self._engine.generate(task, question, self._sampling) for task in tasks))
        return [
            Row(
                group=GroupId(f"train:{name}"),
                task=task,
                node=NodeId("here"),
                trajectory=self._judged(question, generation, str(prompt.fields["answer"])),
            )
            for task, generation in zip(tasks, generations, strict=True)
        ]

    def _judged(self, question: Int32Array, generation: Generation, answer: str) -> Trajectory:
        is_right = generation.finish is Finish.STOP and self._tokenizer.decode(generation.tokens) == answer
        written = (Span(author=Author.MODEL, length=s.length, version=s.version) for s in generation.spans)
        return Trajectory(
            policy=POLICY,
            tokens=np.concatenate([question, generation.tokens]),
            logprobs=generation.logprobs,
            spans=(Span(author=Author.CONTEXT, length=len(question)), *written),
            reward=float(is_right),
            is_truncated=generation.finish is Finish.LENGTH,
        )

    async def _publish_and_load(self) -> None:
        began = time.perf_counter()
        snapshot = snapshot_of(self._backend)
        version = Version(len(self._versions))
        manifest, buffer = build_layout(snapshot.tensors, policy=POLICY, version=version, probe=snapshot.probe)
        if self._versions:
            self._changed.append(float(np.mean(buffer.view("<u2") != self._versions[-1].buffer.view("<u2"))))
        self._versions.append(VerifiedWeights(manifest=manifest, buffer=buffer))
        published = time.perf_counter()
        wanted = self._versions[max(0, len(self._versions) - 1 - self._lags.randint(*self._setup.lag))]
        if self._engine.version is None or wanted.manifest.version > self._engine.version:
            await self._engine.load(wanted)
        self._publish_s += published - began
        self._load_s += time.perf_counter() - published


def main() -> None:
    """Prints one line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lag", type=int, nargs=2, action="append", default=None, metavar=("LEAST", "MOST"))
    parser.add_argument("--learning-rate", type=float, default=Setup().learning_rate)
    chosen = parser.parse_args()
    configure(level="WARNING")
    sys.stdout.write(
        "lag    seed  steps  first  last   prepare    gen  train  publish  load [ms/step]  changed  mismatch\n"
    )
    for least, most in chosen.lag or [(0, 0), (2, 4)]:
        for seed in range(chosen.seeds):
            setup = Setup(seed=seed, lag=(least, most), learning_rate=chosen.learning_rate)
            learned = asyncio.run(Learning(setup).run())
            sys.stdout.write(_line(setup, learned))
            sys.stdout.flush()


def _line(setup: Setup, learned: Learned) -> str:
    steps = len(learned.rewards)
    parts = [learned.generate_s, learned.train_s, learned.publish_s, learned.load_s]
    per_step = "  ".join(f"{1000 * part / steps:5.1f}" for part in parts)
    return (
        f"{setup.lag[0]}-{setup.lag[1]}    {setup.seed:4d}  {steps:5d}  {learned.first:5.2f}  {learned.last:5.3f}  "
        f"{learned.prepare_s:6.1f}s  {per_step}            {learned.changed_share:6.2f}  "
        f"{learned.largest_mismatch:.1e}\n"
    )


if __name__ == "__main__":
    main()
