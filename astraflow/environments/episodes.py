"""Plays episodes of an environment with a scripted expert."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.environments.base import Environment, EnvironmentFactory, Observation

MAX_TURNS = 200
"""Actions after which an episode of an expert counts as endless."""


class Expert(Protocol):
    """Chooses actions without a model. A pure function, so that several episodes may be played at once."""

    def __call__(self, prompt: Prompt, observations: Sequence[Observation], /) -> str:
        """Returns the next action. observations: of the begin and of all actions so far."""


def plan_of_answer(prompt: Prompt, observations: Sequence[Observation]) -> str:
    """Returns the next line of the prompt's field `answer`: the expert of datasets that come with a plan."""
    return str(prompt.fields["answer"]).splitlines()[len(observations) - 1]


async def play(factory: EnvironmentFactory, prompt: Prompt, seed: int, expert: Expert) -> list[Observation]:
    """Plays one episode to its end, with the timeouts of the factory; returns its observations.

    Ends without an ending after `MAX_TURNS` actions. Raises: TimeoutError; whatever the environment raises.
    """
    environment = factory.make()
    try:
        first = await begin(factory, environment, prompt, seed)
        return await play_on(factory, environment, prompt, first, expert)
    finally:
        await environment.close()


async def play_on(
    factory: EnvironmentFactory, environment: Environment, prompt: Prompt, first: Observation, expert: Expert
) -> list[Observation]:
    """Plays an episode that has begun with the observation `first`; as `play`, but leaves the environment open."""
    observations = [first]
    while observations[-1].ending is None and len(observations) <= MAX_TURNS:
        action = expert(prompt, observations)
        observations.append(await act(factory, environment, action))
    return observations


async def begin(factory: EnvironmentFactory, environment: Environment, prompt: Prompt, seed: int) -> Observation:
    """Begins an episode within the limit of the factory. Raises: TimeoutError, TypeError."""
    async with asyncio.timeout(factory.limits.begin_s or None):
        return _observation(await environment.begin(prompt, seed), "begin")


async def act(factory: EnvironmentFactory, environment: Environment, action: str) -> Observation:
    """Performs an action within the limit of the factory. Raises: TimeoutError, TypeError."""
    async with asyncio.timeout(factory.limits.act_s or None):
        return _observation(await environment.act(action), "act")


def _observation(value: object, call: str) -> Observation:
    if not isinstance(value, Observation):
        raise TypeError(f"`{call}` returned {type(value).__name__}; return an Observation")
    return value


def total_reward(observations: Sequence[Observation]) -> float:
    """Returns the reward of an episode."""
    return sum(observation.reward for observation in observations)
