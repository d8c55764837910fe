"""Sampled trajectories scored once more, by another reward than that of their run."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER, QUESTION
from astraflow.rewards import judging_policies, rewards
from astraflow.rewards.base import Reward, score_completion
from astraflow.runtime.plugins import start_managed
from astraflow.tracking.traces import trace_of

Rescore = Callable[[SampledTrajectory], SampledTrajectory]


@contextmanager
def rescoring(spec: Mapping[str, Any]) -> Iterator[Rescore]:
    """Opens a reward, and gives the function that scores the last answer of a trajectory by it. Tokens, masks and
    log-probabilities stay; rewards of single turns, which were the run's, go.

    Raises: InvalidInput for an unknown reward, and for one that asks policies.
    """
    if judging_policies(spec):
        raise InvalidInput(
            f"cannot score trajectories by {spec.get('kind')!r}: it asks policies of a run, and none runs; use a "
            "reward that reads only the answer and fields of the prompt",
            code="trajectories.reward_asks_policies",
        )
    reward, resources = rewards.build(spec), AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            runner.run(start_managed([reward], resources))
            yield lambda sample: runner.run(_rescored(sample, reward))
        finally:
            runner.run(resources.aclose())


async def _rescored(sample: SampledTrajectory, reward: Reward) -> SampledTrajectory:
    fields = json.loads(sample.prompt_fields or "{}")
    known = {QUESTION: sample.prompt_text, ANSWER: sample.reference_text, **fields}
    answers = [turn.text for turn in trace_of(sample, hides_secrets=False).turns if turn.is_answer]
    finish = Finish.LENGTH if sample.is_truncated else Finish.STOP
    prompt = Prompt(id=PromptId(f"{sample.task}"), fields=known)
    score = await score_completion(reward, prompt, answers[-1] if answers else "", finish, tokens=sample.model_tokens)
    if not score.is_finite:
        raise InvalidInput(
            f"cannot score trajectory {sample.ordinal} of task {sample.task!r}: the reward is not finite; correct the "
            "reward",
            code="trajectories.reward_not_finite",
        )
    return replace(sample, reward=score.value, reward_terms=dict(score.terms), turn_rewards=())
