"""Prompts for the scripted engine, whose correct answers follow from their text.

A question contains `say WORD`, and its correct answer is WORD. It may also contain `difficulty=0.3`: the share by which
this question reduces the probability of a correct answer.
"""

import random
import re
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import GeneratedDataset, generated_prompt
from astraflow.runtime.config.base import Config

_ANSWER_PATTERN = re.compile(r"\bsay (\w+)")
_DIFFICULTY = re.compile(r"\bdifficulty=(0(?:\.\d+)?|1(?:\.0+)?)\b")
_WORD = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """Correct answer and difficulty in a question for the scripted engine."""

    word: str
    """The correct answer."""
    difficulty: float
    """0 to 1."""


def parse_scripted_answer(text: str) -> ScriptedAnswer | None:
    """Parses a question; None when it contains no answer.

    >>> parse_scripted_answer("item 7, difficulty=0.3: say right")
    ScriptedAnswer(word='right', difficulty=0.3)
    """
    word = _ANSWER_PATTERN.search(text)
    difficulty = _DIFFICULTY.search(text)
    return ScriptedAnswer(word=word[1], difficulty=float(difficulty[1]) if difficulty else 0.0) if word else None


class ScriptedOptions(Config):
    """Number of prompts and their difficulty."""

    size: int = Field(default=10_000, ge=1)
    """Number of prompts."""
    easiest: float = Field(default=0.0, ge=0, le=1)
    """Lowest difficulty."""
    hardest: float = Field(default=0.0, ge=0, le=1)
    """Highest difficulty; difficulties are uniform in between."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.easiest > self.hardest:
            raise ValueError("easiest must not exceed hardest")
        return self


@datasets.register("scripted", options=ScriptedOptions)
class Scripted(GeneratedDataset):
    """Numbered questions with the answer `right`, for runs with simulated engines."""

    def __init__(self, options: ScriptedOptions, seed: int) -> None:
        super().__init__(options.size)
        self._options = options
        self._seed = seed

    def _prompt(self, index: int) -> Prompt:
        """Returns a prompt such as `item 7, difficulty=0.30: say right`."""
        options = self._options
        difficulty = random.Random(f"scripted/{self._seed}/{index}").uniform(options.easiest, options.hardest)
        return generated_prompt(
            "scripted", index, question=f"item {index}, difficulty={difficulty:.2f}: say {_WORD}", answer=_WORD
        )
