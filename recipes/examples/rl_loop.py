"""Reinforcement learning in one process: prompts, answers, rewards, a step of the optimizer, new weights, and again.

    python recipes/examples/rl_loop.py --steps 40

A run does the same with each part in a process of its own, so that rollouts go on while a step is computed. The small
model learns to reverse four letters; its short supervised start takes half a minute once.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.models import models
from astraflow.raas.engines import engines
from astraflow.rewards import rewards
from astraflow.rewards.base import score_completion
from astraflow.trainer.backends import backends
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.workflows.components.answers import question_of
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder

LETTERS = {"kind": "letters", "operation": "reverse", "length": 4, "alphabet": "abcdefgh"}
TINY = {"kind": "tiny", "warm_start": {"target_accuracy": 0.25, "dataset": LETTERS}}
ALGORITHM = {"advantages": [{"kind": "group_relative"}], "loss": {"kind": "ppo", "clip_high": 0.2}}
POLICY, GROUPS, GROUP_SIZE = PolicyId("solver"), 32, 8


async def train(model: Mapping[str, Any], task: Mapping[str, Any], *, steps: int) -> AsyncIterator[float]:
    """Trains a model on the questions of a dataset; yields the mean reward of each step's answers."""
    tokenizer, reward = models.build(model).tokenizer(), rewards.build({"kind": "exact_match"})
    dataset = datasets.build(task, 0)
    trainer = backends.build({"kind": "local", "learning_rate": 5e-4}, model, ALGORITHM, seed=0)
    engine = engines.build({"kind": "local_torch"}, model)
    sampling = Sampling(max_new_tokens=6, stop_tokens=tokenizer.stop_tokens)
    staged = StagedVersion.private(trainer.published_shapes)

    async def answer(prompt: Prompt, group: GroupId, member: int) -> Row:
        """Returns one answer and its reward, with the tokens and logprobs as they were sampled."""
        name, trajectory = TaskId(f"{group}/{member}"), TrajectoryBuilder(POLICY)
        trajectory.add_context(tokenizer.encode_chat([{"role": "user", "content": question_of(prompt)}]))
        written = await engine.generate(name, trajectory.tokens(), sampling)
        trajectory.add_generation(written)
        score = await score_completion(reward, prompt, tokenizer.decode(written.tokens), written.finish)
        return Row(group=group, task=name, node=NodeId("here"), trajectory=trajectory.build(score))

    await engine.start()
    for step in range(steps):
        version = Version(step)
        trainer.snapshot(staged)
        await engine.load(staged.verified(policy=POLICY, version=version))
        numbers = range(step * GROUPS, (step + 1) * GROUPS)
        prompts = [(dataset.prompt(number % dataset.size), GroupId(f"train:{number}")) for number in numbers]
        rows = await asyncio.gather(*(answer(*prompt, member) for prompt in prompts for member in range(GROUP_SIZE)))
        batch_id = BatchId(f"{POLICY}:{step}")
        trainer.step(Batch(id=batch_id, policy=POLICY, version=version, is_redelivered=False, rows=rows))
        yield sum(row.trajectory.reward for row in rows) / len(rows)
    await engine.close()


async def main() -> None:
    """Prints the reward of each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    async for reward in train(TINY, LETTERS, steps=parser.parse_args().steps):
        sys.stdout.write(f"reward {reward:.3f}\n")


if __name__ == "__main__":
    asyncio.run(main())
