"""An environment of your own: guess a number, which is higher or lower than each guess.

    astraflow --plugin recipes/examples/own_environment.py run recipes/examples/own_environment.toml
    astraflow --plugin FILE check environment guess_number --dataset DATASET --expert own_environment:bisect

where FILE is this one, and DATASET is '{"kind": "letters"}'. Copy both files, and change the rules.
"""

import random
import re
from collections.abc import Sequence

from pydantic import Field

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.runtime.config.base import Config


class GuessNumberOptions(Config):
    """Options in the recipe, in addition to `kind`."""

    largest: int = Field(default=100, ge=2)
    """The number is between 1 and this one."""
    guesses: int = Field(default=10, ge=1)
    """Guesses in an episode; then it is lost."""


@environments.register("guess_number", options=GuessNumberOptions)
class GuessNumberFactory:
    """Creates environments, one for each episode. Reward 1 for the right number."""

    def __init__(self, options: GuessNumberOptions) -> None:
        self._options = options

    @property
    def limits(self) -> EnvironmentLimits:
        """Seconds that `begin` and `act` may take."""
        return EnvironmentLimits(begin_s=5.0, act_s=5.0)

    def make(self) -> "GuessNumber":
        """Returns a new environment."""
        return GuessNumber(self._options)

    async def check(self) -> None:
        """Needs nothing. Raise `InvalidInput` here when a package or a file is missing."""


class GuessNumber:
    """One episode. Everything random comes from the seed, so that an episode can be replayed on another node."""

    def __init__(self, options: GuessNumberOptions) -> None:
        self._options = options
        self._number = 0
        self._guesses = 0
        self._ending: Ending | None = None

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        """Draws the number."""
        self._number = random.Random(f"{prompt.id}/{seed}").randint(1, self._options.largest)
        return Observation(text=f"Guess a number from 1 to {self._options.largest}.")

    async def act(self, action: str) -> Observation:
        """Compares a guess. A bad guess is an observation, never an exception."""
        if self._ending is not None:
            return Observation(text="The episode has ended.", ending=self._ending)
        text = action.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            return Observation(text="Answer with one number.", is_malformed=True)
        guess = int(text)
        self._guesses += 1
        if guess == self._number:
            self._ending = Ending.WON
            return Observation(text="Right.", reward=1.0, ending=self._ending)
        self._ending = Ending.LOST if self._guesses == self._options.guesses else None
        hint = "higher" if guess < self._number else "lower"
        return Observation(text=f"The number is {hint}.", ending=self._ending)

    async def close(self) -> None:
        """Releases processes, files or connections of the episode; here there are none."""


def bisect(_: Prompt, observations: Sequence[Observation]) -> str:
    """Guesses the middle of what is possible: an expert, which shows the check that the environment can be won."""
    low, high = 1, int(re.findall(r"\d+", observations[0].text)[-1])
    for observation in observations[1:]:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if "higher" in observation.text else (low, middle - 1)
    return str((low + high) // 2)
