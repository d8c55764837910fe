"""Soft penalty for long completions.

Source: DAPO, arXiv:2503.14476, equation 13.
"""

from typing import Self

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.runtime.config.base import Config


class OverlongOptions(Config):
    """Length limit, and the stretch before it."""

    max_tokens: int = Field(ge=1)
    """Length at which the penalty is full; usually `max_new_tokens` of the workflow. Tokens."""
    buffer_tokens: int = Field(ge=1)
    """Length of the last stretch, in which the penalty grows. Tokens."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.buffer_tokens > self.max_tokens:
            raise ValueError("buffer_tokens is larger than max_tokens; choose a smaller one")
        return self


@rewards.register("overlong", options=OverlongOptions)
class Overlong:
    """Returns 0 up to `max_tokens - buffer_tokens`, then falls linearly to -1 at `max_tokens`, and stays there.

    A term of a rubric; alone it only rewards brevity.
    """

    def __init__(self, options: OverlongOptions) -> None:
        self._options = options

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
        """Raises InvalidInput: the length is needed."""
        return self.score_with_length(prompt, completion, finish, tokens=None)

    def score_with_length(self, prompt: Prompt, completion: str, finish: Finish, *, tokens: int | None) -> float:
        """Returns the penalty, in -1 to 0. Raises: InvalidInput when the workflow does not count tokens."""
        if tokens is None:
            raise InvalidInput(
                "cannot compute the penalty for long completions: the workflow does not give the length in tokens; "
                "pass `tokens` to `RewardScorer.score` in the workflow",
                code="reward.no_length",
            )
        begin = self._options.max_tokens - self._options.buffer_tokens
        return -min(1.0, max(0.0, (tokens - begin) / self._options.buffer_tokens))
