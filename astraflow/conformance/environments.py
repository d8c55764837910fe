"""Check of an environment, built in or of a third party, against the promises of the interface."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from astraflow.conformance.promises import Broken, result_of
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.plugins import CheckResult
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments.base import EnvironmentFactory, Observation
from astraflow.environments.episodes import Expert, act, begin, play, play_on, total_reward
from astraflow.runtime.plugins import start_managed

WORKS = "says that it works on this machine"
WINS = "is won by the expert, with the best total reward"
REPEATS = "gives the same observations for the same prompt, seed and actions"
ENDS_ONCE = "ends once, and gives no reward afterwards"
CONCURRENT = "keeps episodes that run at the same time apart"
BAD_ACTIONS = "answers actions that it cannot read, and then stays in its state"
LARGE_ACTION = "answers an action of 10 MB, with a text of bounded length"
CLOSES = "can be closed at any time, and again"
FOREIGN_PROMPT = "refuses a prompt of another kind as invalid input, or plays it"
PROMISES = (WORKS, WINS, REPEATS, ENDS_ONCE, CONCURRENT, BAD_ACTIONS, LARGE_ACTION, CLOSES, FOREIGN_PROMPT)

MAX_TEXT_CHARACTERS = 1_000_000
"""Longest text of an observation; a workflow cuts texts to the context of its policy long before."""
CONCURRENCY = 8
"""Episodes that run at the same time, or fewer where the factory's limit is lower. Count."""
UNREADABLE_ACTIONS = (
    "",
    " ",
    "\n\n",
    "\x00",
    "éß漢🙂",
    "[]",
    '{"action": {}}',
    "do what I mean",
    "click[",
    "get -1 x",
    "get 99999999999999999999999 x",
    "a" * 5000,
)
"""Actions that no environment can read."""
_LARGE_ACTION = "look " * 2_000_000
_FOREIGN = Prompt(id=PromptId("conformance:foreign"), fields={"question": "1+1?", "answer": "2"})


async def check_environment(
    factory: EnvironmentFactory, prompts: Sequence[Prompt], expert: Expert, *, best_reward: float | None = 1.0
) -> list[CheckResult]:
    """Starts the factory, plays the prompts in several ways, and closes it; returns a result for each promise.

    prompts: two or more that the environment accepts, with short episodes. expert: wins each of them.
    best_reward: total reward of a won episode; None for an environment without a best reward, whose episodes need only
    end. Raises: InvalidInput without prompts; what the factory raises when it does not start.
    """
    if not prompts:
        raise InvalidInput("cannot check the environment: no prompts; give two or more", code="check.no_prompts")
    async with AsyncExitStack() as resources:
        await start_managed([factory], resources)
        return await _Check(factory, prompts, expert, best_reward).results()


class _Check:
    def __init__(
        self, factory: EnvironmentFactory, prompts: Sequence[Prompt], expert: Expert, best_reward: float | None
    ) -> None:
        self._factory = factory
        self._prompts = prompts
        self._expert = expert
        self._best_reward = best_reward

    async def results(self) -> list[CheckResult]:
        """Returns the result of each promise."""
        checks: dict[str, Callable[[], Awaitable[None]]] = {
            WORKS: self._factory.check,
            WINS: self._wins,
            REPEATS: self._repeats,
            ENDS_ONCE: self._ends_once,
            CONCURRENT: self._concurrent,
            BAD_ACTIONS: self._bad_actions,
            LARGE_ACTION: self._large_action,
            CLOSES: self._closes,
            FOREIGN_PROMPT: self._foreign_prompt,
        }
        return [await result_of(promise, checks[promise]) for promise in PROMISES]

    async def _wins(self) -> None:
        for seed, prompt in enumerate(self._prompts):
            observations = await self._play(prompt, seed)
            reward, ending = total_reward(observations), observations[-1].ending
            how = "without an end" if ending is None else f"ended as `{ending.value}`"
            best = self._best_reward
            if best is None and (ending is None or not math.isfinite(reward)):
                raise Broken(f"prompt {str(prompt.id)!r}: reward {reward:g}, {how}")
            if best is not None and (ending is not Ending.WON or not math.isclose(reward, best)):
                raise Broken(
                    f"prompt {str(prompt.id)!r}: reward {reward:g} instead of {best:g}, {how} instead of `won`"
                )

    async def _repeats(self) -> None:
        for seed, prompt in enumerate(self._prompts):
            _compare(await self._play(prompt, seed), await self._play(prompt, seed), f"prompt {str(prompt.id)!r}")

    async def _ends_once(self) -> None:
        prompt = self._prompts[0]
        environment = self._factory.make()
        try:
            first = await begin(self._factory, environment, prompt, 0)
            observations = await play_on(self._factory, environment, prompt, first, self._expert)
            try:
                further = await act(self._factory, environment, self._expert(prompt, observations[:-1]))
            except AstraFlowError:
                return
            if further.reward:
                raise Broken(f"an action after the end has the reward {further.reward:g}")
        finally:
            await environment.close()

    async def _concurrent(self) -> None:
        limit = min(self._factory.limits.concurrency or CONCURRENCY, CONCURRENCY)
        pairs = [(self._prompts[number % len(self._prompts)], number) for number in range(limit)]
        alone = [await self._play(prompt, seed) for prompt, seed in pairs]
        together = await asyncio.gather(*(self._play(prompt, seed) for prompt, seed in pairs))
        for (prompt, _), sequential, concurrent in zip(pairs, alone, together, strict=True):
            _compare(sequential, concurrent, f"prompt {str(prompt.id)!r}")

    async def _bad_actions(self) -> None:
        prompt = self._prompts[0]
        clean = await self._play(prompt, 0)
        unchanged = self._factory.make()
        try:
            first = await begin(self._factory, unchanged, prompt, 0)
            for action in UNREADABLE_ACTIONS:
                answer = _checked(await act(self._factory, unchanged, action))
                if not answer.is_malformed:
                    return  # it can read the action, so that its state may have changed
                if answer.ending or answer.reward:
                    raise Broken(f"the malformed action {action[:40]!r} has an ending or a reward")
            observations = await play_on(self._factory, unchanged, prompt, first, self._expert)
        finally:
            await unchanged.close()
        _compare(clean, observations, "after malformed actions")

    async def _large_action(self) -> None:
        environment = self._factory.make()
        try:
            await begin(self._factory, environment, self._prompts[0], 0)
            _checked(await act(self._factory, environment, _LARGE_ACTION))
        finally:
            await environment.close()

    async def _closes(self) -> None:
        never_begun, begun = self._factory.make(), self._factory.make()
        await never_begun.close()
        await never_begun.close()
        await begin(self._factory, begun, self._prompts[0], 0)
        await begun.close()
        await begun.close()

    async def _foreign_prompt(self) -> None:
        environment = self._factory.make()
        try:
            _checked(await begin(self._factory, environment, _FOREIGN, 0))
        except InvalidInput:
            return
        finally:
            await environment.close()

    async def _play(self, prompt: Prompt, seed: int) -> list[Observation]:
        observations = await play(self._factory, prompt, seed, self._expert)
        for observation in observations:
            _checked(observation)
        if observations[-1].ending is None:
            raise Broken(f"prompt {str(prompt.id)!r}: no ending after {len(observations) - 1} actions of the expert")
        return observations


def _checked(observation: Observation) -> Observation:
    """Returns the observation. Raises: Broken when a value is not of its type, not finite, or too long."""
    numbers = [observation.reward, *observation.reward_terms.values(), *observation.metrics.values()]
    if not all(math.isfinite(number) for number in numbers):
        raise Broken("a reward, a reward term or a metric is not a finite number")
    if not all(isinstance(text, str) for text in (observation.text, observation.state, *observation.actions)):
        raise Broken("text, state or an action of an observation is not text")
    length = len(observation.text) + len(observation.state) + sum(map(len, observation.actions))
    if length > MAX_TEXT_CHARACTERS:
        raise Broken(f"an observation has {length} characters; at most {MAX_TEXT_CHARACTERS}")
    return observation


def _compare(first: Sequence[Observation], second: Sequence[Observation], what: str) -> None:
    """Compares two episodes. Raises: Broken with the first difference."""
    for number, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            raise Broken(f"{what}: observation {number} differs: {_shortened(left)} and {_shortened(right)}")
    if len(first) != len(second):
        raise Broken(f"{what}: {len(first)} and {len(second)} observations")


def _shortened(observation: Observation) -> str:
    text = repr(observation)
    return text if len(text) <= 300 else f"{text[:300]}..."
