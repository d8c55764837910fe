"""Weighted sum of rewards."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import AsyncExitStack
from copy import copy
from typing import Annotated, Any

from pydantic import Field, field_validator

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import judging_policies, rewards
from astraflow.rewards.base import JudgePolicy, PolicyReward, Reward, Score, score_completion
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.plugins import start_managed


class TermOptions(Config):
    """One reward of the sum."""

    reward: Annotated[dict[str, Any], SettableBy.RECIPE]
    """Kind and options of the reward."""
    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Factor of its value; 0 only measures it."""
    multiplies: Annotated[bool, SettableBy.AGENT] = False
    """Multiply the sum of the other terms by its value, unweighted, instead of adding it: a condition that must hold,
    such as a format."""

    @field_validator("reward")
    @classmethod
    def _known(cls, reward: dict[str, Any]) -> dict[str, Any]:
        rewards.check(reward)
        return reward


class RubricOptions(Config):
    """Rewards to sum up."""

    terms: dict[str, TermOptions] = Field(min_length=1)
    """By name, under which each value is reported."""

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies of the run that the rewards ask, each once."""
        return tuple(dict.fromkeys(name for term in self.terms.values() for name in judging_policies(term.reward)))


@rewards.register("rubric", options=RubricOptions)
class Rubric:
    """Returns the weighted sum of several rewards, and each value before weighting as a term.

    Terms that multiply are applied to the sum of the others.

    All are asked at the same time. The answer is that of the first term that finds one. A failure of one fails the
    whole: a sum without it would be another reward.
    """

    def __init__(self, options: RubricOptions) -> None:
        self._terms = options.terms
        self._parts: dict[str, Reward] = {name: rewards.build(term.reward) for name, term in options.terms.items()}
        self._resources = AsyncExitStack()

    @property
    def parts(self) -> Mapping[str, Reward]:
        """Rewards of the sum, by name."""
        return self._parts

    def asking(self, policies: Mapping[PolicyId, JudgePolicy]) -> Reward:
        """Returns the sum for one episode, whose rewards ask these policies."""
        rubric = copy(self)
        rubric._parts = {
            name: part.asking(policies) if isinstance(part, PolicyReward) else part
            for name, part in self._parts.items()
        }
        return rubric

    async def start(self) -> None:
        """Starts the rewards that own processes or connections."""
        await start_managed(self._parts.values(), self._resources)

    async def close(self) -> None:
        """Closes them. Idempotent."""
        await self._resources.aclose()

    async def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns the sum, for rewards that need no length. Raises what one of them raises."""
        return await self.score_with_length(prompt, completion, finish, tokens=None)

    async def score_with_length(self, prompt: Prompt, completion: str, finish: Finish, *, tokens: int | None) -> Score:
        """Returns the sum. Raises what one of the rewards raises."""
        scorings = [score_completion(part, prompt, completion, finish, tokens=tokens) for part in self._parts.values()]
        results = await asyncio.gather(*scorings, return_exceptions=True)  # waits for all, so that none runs on
        for result in results:
            if isinstance(result, BaseException):
                raise result
        scores = {name: result for name, result in zip(self._parts, results, strict=True) if isinstance(result, Score)}
        terms: dict[str, float] = {}
        for name, score in scores.items():
            terms[name] = score.value
            terms |= {f"{name}.{part}": value for part, value in score.terms.items()}
        return Score(
            value=self._total(scores),
            answer=next((score.answer for score in scores.values() if score.answer), ""),
            terms=terms,
        )

    def _total(self, scores: Mapping[str, Score]) -> float:
        added = [self._terms[name].weight * score.value for name, score in scores.items() if not self._multiplies(name)]
        return math.prod((score.value for name, score in scores.items() if self._multiplies(name)), start=sum(added))

    def _multiplies(self, name: str) -> bool:
        return self._terms[name].multiplies
