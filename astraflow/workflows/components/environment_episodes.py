"""Environments of episodes: opened within the limits of their factory, and closed on every path."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments import environments
from astraflow.environments.base import Environment, EnvironmentLimits, Observation
from astraflow.runtime.logs import get_logger
from astraflow.runtime.plugins import plugin_cause, start_managed
from astraflow.runtime.tracing import span

log = get_logger()

CLOSE_S = 10.0
"""Time limit for closing an environment. Seconds."""
MAX_VALUES = 64
"""Reward terms and metrics of an observation, together."""


class OpenEnvironment:
    """Environment of one episode that has begun."""

    def __init__(self, make: Callable[[], Environment], limits: EnvironmentLimits, *, least_reward: float) -> None:
        """least_reward: least reward of an episode so far, and at most 0."""
        self._make = make
        self._limits = limits
        self._least_reward = least_reward
        self._environment = make()
        self._begin: tuple[Prompt, int] | None = None
        self._actions: list[str] = []
        self.observation = Observation(text="")
        """Latest observation."""
        self.reward = 0.0
        """Sum of the rewards so far."""

    async def begin(self, prompt: Prompt, seed: int) -> None:
        """Begins the episode. Raises: InvalidInput; RolloutFailed at the boundary `environment`."""
        self._begin = prompt, seed
        self._take(await self._begun())

    async def act(self, action: str) -> Observation:
        """Performs an action and returns the observation. Raises: RolloutFailed at the boundary `environment`."""
        self._actions.append(action)
        try:
            observation = await self._acted(action)
        except RolloutFailed as failure:
            if not (self._limits.replays_failures and await self._fails_again()):
                raise
            log.warning("action_fails_environment", turn=len(self._actions), cause=str(failure))
            observation = Observation(
                text="The environment failed at this action.",
                reward=min(self._least_reward - self.reward, 0.0),
                ending=Ending.LOST,
                metrics={"environment_failed": 1.0},
            )
        return self._take(observation)

    async def close(self) -> None:
        """Closes the environment within the time limit; logs a failure."""
        await _close(self._environment)

    async def _fails_again(self) -> bool:
        """Returns whether the actions of the episode make another environment fail at the last one, too."""
        await self.close()
        self._environment = self._make()
        try:
            await self._begun()
            for action in self._actions[:-1]:
                await self._acted(action)
        except RolloutFailed:
            return False
        try:
            await self._acted(self._actions[-1])
        except RolloutFailed:
            return True
        return False

    async def _begun(self) -> Observation:
        assert self._begin is not None  # noqa: S101 (begin sets it)
        return await _observed("begin", self._limits.begin_s, self._environment.begin(*self._begin))

    async def _acted(self, action: str) -> Observation:
        return await _observed("act", self._limits.act_s, self._environment.act(action))

    def _take(self, observation: Observation) -> Observation:
        self.observation = observation
        self.reward += observation.reward
        return observation


class EnvironmentSource:
    """Opens environments of one factory. A `ManagedPlugin` of the workflow that uses it.

    When as many are open as the factory allows, further episodes wait in the order in which they came.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Raises: InvalidInput for an unknown kind or invalid options."""
        self._factory = environments.build(spec)
        self._resources = AsyncExitStack()
        concurrency = self._factory.limits.concurrency
        self._slots = asyncio.Semaphore(concurrency) if concurrency else None
        self._least_reward = 0.0

    async def start(self) -> None:
        """Starts the factory and checks that its environments work here. Raises: InvalidInput, Unavailable."""
        await start_managed((self._factory,), self._resources)
        await self._factory.check()

    async def close(self) -> None:
        """Closes the factory."""
        await self._resources.aclose()

    @asynccontextmanager
    async def open(self, prompt: Prompt, seed: int) -> AsyncIterator[OpenEnvironment]:
        """Opens an environment and begins its episode; closes it at the end.

        Raises: InvalidInput for a prompt of another kind; RolloutFailed at the boundary `environment`.
        """
        async with self._slots or nullcontext():
            opened = OpenEnvironment(self._factory.make, self._factory.limits, least_reward=self._least_reward)
            try:
                await opened.begin(prompt, seed)
                yield opened
                self._least_reward = min(self._least_reward, opened.reward)
            finally:
                await opened.close()


async def _observed(call: str, timeout_s: float, observing: Awaitable[Observation]) -> Observation:
    """Awaits an observation and checks its numbers."""
    try:
        with span(f"rl.environment.{call}"):
            async with asyncio.timeout(timeout_s) as limit:
                observation = await observing
    except (RolloutFailed, InvalidInput):
        raise
    except Exception as problem:  # an environment may raise anything
        is_late = isinstance(problem, TimeoutError) and limit.expired()
        cause = f"no answer to '{call}' after {timeout_s:g} s" if is_late else plugin_cause(problem)
        raise RolloutFailed(
            f"cannot continue in the environment: {cause}; look for its own log, or raise its limits",
            boundary=Boundary.ENVIRONMENT,
            code="rollout.environment_timeout" if is_late else "rollout.environment_failed",
        ) from problem
    if not isinstance(observation, Observation):
        raise RolloutFailed(
            f"cannot use the observation: '{call}' returned {type(observation).__name__}; return an Observation",
            boundary=Boundary.ENVIRONMENT,
            code="rollout.invalid_observation",
        )
    values = (*observation.reward_terms.values(), *observation.metrics.values())
    if len(values) > MAX_VALUES or not all(math.isfinite(number) for number in (observation.reward, *values)):
        raise RolloutFailed(
            "cannot use the observation: its reward, a term or a metric is not finite, or it has more than "
            f"{MAX_VALUES} terms and metrics; return fewer, finite numbers",
            boundary=Boundary.ENVIRONMENT,
            code="rollout.invalid_observation",
        )
    return observation


async def _close(environment: Environment) -> None:
    """Closes the environment within the time limit, also when the episode is cancelled; logs a failure."""
    closing = asyncio.create_task(_close_logged(environment))
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await closing
        raise


async def _close_logged(environment: Environment) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await environment.close()
    except Exception:  # an environment may raise anything; the episode is over
        log.exception("environment_not_closed", environment=type(environment).__name__)
