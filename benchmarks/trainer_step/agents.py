"""Training step on episodes of agents, whose trajectories share what they begin with.

    python -m benchmarks.trainer_step.agents [--batching packed tree rows] [--repeats 3] [--threads 1] [--json FILE]

Policies without a model play groups of 8 episodes of the workflows of AstraFlow, with the byte tokenizer: a calculator
(`tool_use`), recursive TextCraft, and sessions of an agent program that samples each step three times and goes on with
one of them. Prints tokens of all trajectories, distinct tokens, computed tokens, and the tokens per second of CPU time
of the batchings, which train the same rows from the same weights; losses of the first two steps agree to 1e-3.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from astraflow.agents.calls import AgentMessage, CallOptions, ModelCall, Role
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.batches import Batch, Row
from astraflow.contract.ids import BatchId, NodeId, PolicyId, PromptId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.datasets import datasets
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.rewards import rewards
from astraflow.trainer.engines.base import Batching
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from benchmarks.trainer_step.__main__ import CLOCKS, LARGEST_LOSS_DIFFERENCE
from benchmarks.trainer_step.loops import LocalLoop, Setting
from benchmarks.trainer_step.rows import SMALL
from tests import make

SOLVER = PolicyId("solver")
GROUPS, MEMBERS = 2, 8
WORDS = ("first", "then", "the", "product", "of", "both", "parts", "is", "what", "we", "need", "here", "so", "check")


class RandomPolicy:
    """Replies to the text that it reads with a text drawn by a generator."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        self._reply = reply

    @property
    def tokenizer(self) -> ByteTokenizer:
        """The byte tokenizer."""
        return ByteTokenizer()

    @property
    def allows_grammars(self) -> bool:
        """True."""
        return True

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the reply, with one logprob for all its tokens."""
        text = self._reply(self.tokenizer.decode(prompt, keep_special_tokens=True))
        end = np.asarray(sampling.stop_tokens[:1], dtype=np.int32)
        tokens = np.concatenate([self.tokenizer.encode(text), end]).astype(np.int32)
        return Generation(
            tokens=tokens,
            logprobs=np.full(len(tokens), -5.0, dtype=np.float32),
            spans=(VersionSpan(version=Version(0), length=len(tokens)),),
            finish=Finish.STOP,
        )


def thought(source: random.Random) -> str:
    """Returns a few words, of which the first are often the same."""
    return " ".join(source.choice(WORDS[: 2 + 3 * position]) for position in range(source.randint(4, 12)))


def tool_use(group: int, source: random.Random) -> Sequence[Trajectory]:
    """Returns an episode in which a policy calls a calculator up to four times."""
    factors = random.Random(group).sample(range(12, 98), 4)

    def reply(text: str) -> str:
        calls = text.count("<tool_response>") - text.count("results")
        if calls >= 3 or (calls and source.random() < 0.2):
            return f"{thought(source)}. {factors[0] * factors[1]}"
        expression = source.choice((f"{factors[calls]} * {factors[1]}", f"{factors[0]} * {factors[calls]}"))
        call = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
        return f"{thought(source)}\n<tool_call>{call}</tool_call>"

    workflow = workflows.build({"kind": "tool_use", "tools": [{"kind": "calculator"}], "max_context": 4096})
    question = f"Multiply {factors[0]} by {factors[1]}, then by {factors[2]}, then by {factors[3]}. Use the calculator."
    prompt = Prompt(id=PromptId(str(group)), fields={"question": question, "answer": "0"})
    return _episode(workflow, prompt, reply)


def recursive_textcraft(group: int, source: random.Random) -> Sequence[Trajectory]:
    """Returns an episode in which a crafting agent starts others for parts of its goal."""
    prompt = datasets.build({"kind": "textcraft", "size": 64, "min_depth": 3, "max_depth": 3}, seed=1).prompt(group)
    plan = str(prompt.fields["answer"]).splitlines()
    parts = [step.removeprefix("get ") for step in plan if step.startswith("get ")]

    def reply(text: str) -> str:
        turns = text.count("assistant\n") - 1
        if "spawn" in text and turns == 0 and source.random() < 0.8:
            return f"{thought(source)}\nspawn {' | '.join(source.sample(parts, min(2, len(parts))))}"
        if turns > 5 or (turns > 2 and source.random() < 0.2):
            return f"{thought(source)}\nfinish {thought(source)}"
        return f"{thought(source)}\n{source.choice(plan[turns : turns + 2] or plan)}"

    workflow = workflows.build({"kind": "recursive", "max_depth": 1, "max_context": 4096})
    return _episode(workflow, prompt, reply)


def branching_sessions(group: int, source: random.Random) -> Sequence[Trajectory]:
    """Returns a session in which each of five steps is sampled three times from the same messages."""
    draws = random.Random(group)
    instructions = " ".join(draws.choice(WORDS) for _ in range(60))
    policies = {SOLVER: RandomPolicy(lambda _: thought(source))}

    async def run() -> Sequence[Trajectory]:
        session = PolicySession(policies, SessionOptions(max_context=4096), default=SOLVER)
        messages = [_message(Role.SYSTEM, instructions), _message(Role.USER, f"Task {group}: {instructions[:80]}")]
        for step in range(5):
            replies = [
                await session.complete(
                    ModelCall(options=CallOptions(model="solver", retry_key=f"{step}/{number}"), messages=(*messages,))
                )
                for number in range(3)
            ]
            chosen = source.choice(replies).message
            messages += [chosen, _message(Role.USER, f"Result of step {step}: {thought(source)}")]
        return session.trajectories(source.random())

    return asyncio.run(run())


EPISODES: dict[str, Callable[[int, random.Random], Sequence[Trajectory]]] = {
    "tool use": tool_use,
    "recursive TextCraft": recursive_textcraft,
    "branching sessions": branching_sessions,
}


def _message(role: Role, text: str) -> AgentMessage:
    return AgentMessage(role=role, content=text)


def _episode(workflow: Any, prompt: Prompt, reply: Callable[[str], str]) -> Sequence[Trajectory]:
    scorer = RewardScorer(rewards.build({"kind": "exact_match"}))
    trajectories: Sequence[Trajectory] = asyncio.run(
        workflow.run(make.task(prompt_given=prompt), {SOLVER: RandomPolicy(reply)}, scorer)
    )
    return trajectories


def batch_of_episodes(kind: str) -> Batch:
    """Returns groups of episodes, with random rewards."""
    rows = []
    for group in range(GROUPS):
        for member in range(MEMBERS):
            source = random.Random(1000 * group + member)
            task = make.task(group=group, member=member)
            rows += [
                Row(
                    group=task.group,
                    task=task.id,
                    node=NodeId("node-1"),
                    trajectory=replace(trajectory, reward=source.random(), turn_rewards=(), turn_discounts=()),
                )
                for trajectory in EPISODES[kind](group, source)
                if trajectory.model_tokens
            ]
    return Batch(id=BatchId("solver:1"), policy=SOLVER, version=Version(0), is_redelivered=False, rows=tuple(rows))


def measure(
    batch: Batch, batchings: Sequence[Batching], repeats: int, clock: Callable[[], float]
) -> tuple[Any, Mapping[str, list[float]]]:
    """Returns the facts of the plan of the first batching, and seconds of the steps of all, by repeat."""
    vocabulary = ByteTokenizer().vocab_size
    loops = {
        batching.value: LocalLoop(
            Setting(
                vocabulary=vocabulary,
                micro_batch_tokens=16_384,
                shape={**SMALL, "max_position_embeddings": 4096},
                engine={"batching": batching},
            )
        )
        for batching in batchings
    }
    plan, _ = next(iter(loops.values())).run(batch)
    losses = [loop.step(batch) for loop in [*loops.values()][1:]]
    losses = [loop.step(batch) for loop in loops.values()]
    if max(losses) - min(losses) > LARGEST_LOSS_DIFFERENCE:
        raise SystemExit(f"the losses differ: {losses}")
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(repeats):
        for name, loop in loops.items():
            began = clock()
            loop.step(batch)
            seconds[name].append(clock() - began)
    return plan.facts, seconds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batching", nargs="+", choices=[*Batching], type=Batching, default=[Batching.PACKED])
    parser.add_argument("--only", choices=EPISODES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    sys.stdout.write(
        "| episodes | rows | tokens | distinct | computed | computed / distinct | batching | s per step |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    results: dict[str, Any] = {}
    for kind in [chosen.only] if chosen.only else EPISODES:
        batch = batch_of_episodes(kind)
        facts, seconds = measure(batch, chosen.batching, chosen.repeats, CLOCKS[chosen.clock])
        tokens = sum(len(row.trajectory.tokens) for row in batch.rows)
        results[kind] = {"tokens": tokens, "distinct": facts.distinct, "computed": facts.width, "seconds": seconds}
        for name, times in seconds.items():
            sys.stdout.write(
                f"| {kind} | {len(batch.rows)} | {tokens:,} | {facts.distinct:,} | {facts.width:,} "
                f"| {facts.width / facts.distinct:.3f} | {name} "
                f"| {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}) |\n"
            )
        sys.stdout.flush()
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
