"""Demonstrations: episodes that experts play in a workflow, as examples for a warm start."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.datasets.base import Dataset, draw_indices
from astraflow.models.base import EpisodeOptions, Transcript
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.rewards import rewards
from astraflow.runtime.plugins import start_managed
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer, Workflow
from astraflow.workflows.components.roles import at_once
from astraflow.workflows.scripted.experts import Expert, Situation, expert_named, fixed_turns

_AT_ONCE = 32
"""Episodes that are played at the same time."""
_READ, _IMITATED = Version(0), Version(1)
"""Marks of the turns that are no examples, and of those that are."""


def demonstrations(
    options: EpisodeOptions, dataset: Dataset, tokenizer: ChatTokenizer, *, seed: int
) -> Iterator[Transcript]:
    """Plays the episodes, and yields the policy's transcripts without end, each time in another order.

    Raises: InvalidInput for an unknown expert or policy; RolloutFailed when an environment or tool does not work.
    """
    transcripts = asyncio.run(_Play(options, dataset, tokenizer, seed).transcripts())
    rng = random.Random(f"demonstrations/{seed}")
    while True:
        yield from rng.sample(transcripts, len(transcripts))


class _Play:
    """Episodes of a warm start."""

    def __init__(self, options: EpisodeOptions, dataset: Dataset, tokenizer: ChatTokenizer, seed: int) -> None:
        self._options = options
        self._dataset = dataset
        self._tokenizer = tokenizer
        rng = random.Random(f"demonstrations/prompts/{seed}")
        self._prompts = [
            index for _ in range(options.episodes_per_prompt) for index in draw_indices(dataset, options.prompts, rng)
        ]
        self._workflow: Workflow = workflows.build(options.workflow)
        policies = self._workflow.policies
        if options.policy not in policies:
            raise InvalidInput(
                f"cannot play episodes for a warm start: the workflow has no policy {options.policy!r}; use "
                f"{' or '.join(policies)}",
                code="model.unknown_episode_policy",
            )
        self._experts = {policy: _expert(options, policy) for policy in policies}
        self._scorer = RewardScorer(rewards.build({"kind": "format"}))  # its value is not used

    async def transcripts(self) -> list[Transcript]:
        """Returns the policy's transcripts of all episodes that have something to imitate."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def play(number: int) -> list[Transcript]:
            async with limit:
                return await self._play(number)

        async with AsyncExitStack() as resources:
            await start_managed([self._workflow], resources)
            played = await at_once(map(play, range(len(self._prompts))))
        return [transcript for transcripts in played for transcript in transcripts]

    async def _play(self, number: int) -> list[Transcript]:
        prompt, other = (self._prompt(number + offset) for offset in (0, 1))
        clients = {
            policy: _ExpertClient(expert, self._tokenizer, prompt, other, number)
            for policy, expert in self._experts.items()
        }
        trajectories = await self._workflow.run(_task(number, prompt), clients, self._scorer)
        own = [_transcript(trajectory) for trajectory in trajectories if trajectory.policy == self._options.policy]
        return [transcript for transcript in own if transcript.is_written.any()]

    def _prompt(self, number: int) -> Prompt:
        return self._dataset.prompt(self._prompts[number % len(self._prompts)])


@dataclass(slots=True)
class _ExpertClient:
    """Client of a policy that an expert plays, in one episode."""

    expert: Expert
    tokenizer: ChatTokenizer
    prompt: Prompt
    other: Prompt
    number: int
    turn: int = 0

    @property
    def allows_grammars(self) -> bool:
        """True: an expert answers."""
        return True

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        """Returns the expert's reply and a stop token; the limits of the sampling are not applied."""
        text = self.tokenizer.decode(prompt)
        reply = self.expert(
            Situation(prompt=self.prompt, other=self.other, number=self.number, turn=self.turn, text=text)
        )
        self.turn += 1
        tokens = self.tokenizer.encode_answer(reply.text)
        mark = _IMITATED if reply.is_example else _READ
        return Generation(
            tokens=tokens,
            logprobs=np.zeros(len(tokens), dtype=np.float32),
            spans=(VersionSpan(version=mark, length=len(tokens)),),
            finish=Finish.STOP,
        )


def _expert(options: EpisodeOptions, policy: PolicyId) -> Expert:
    name = options.experts.get(policy)
    return expert_named(name) if name is not None else fixed_turns(options.turns.get(policy, ("{answer}",)))


def _task(number: int, prompt: Prompt) -> Task:
    group = GroupId(f"warm_start:{number}")
    return Task(id=TaskId(f"{group}/0"), group=group, flow=FlowId("warm_start"), member=0, attempt=0, prompt=prompt)


def _transcript(trajectory: Trajectory) -> Transcript:
    is_imitated = np.array([span.version == _IMITATED for span in trajectory.spans], dtype=np.bool_)
    return Transcript(
        tokens=trajectory.tokens, is_written=np.repeat(is_imitated, [span.length for span in trajectory.spans])
    )
