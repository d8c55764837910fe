"""Reward for an exactly matching answer."""

from typing import Annotated

from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.rewards.base import Score, text_field
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class ExactMatchOptions(Config):
    """Location of the correct answer."""

    answer_field: Annotated[str, SettableBy.AGENT] = "answer"
    """Field of the prompt with the correct answer."""

    @property
    def prompt_fields(self) -> tuple[tuple[str, ...], ...]:
        """Fields of the prompt that the reward needs."""
        return ((self.answer_field,),)


@rewards.register("exact_match", options=ExactMatchOptions)
class ExactMatch:
    """Returns 1 when the completion equals the answer and the model ended it by itself, else 0.

    Ending is part of the answer: a model that writes the correct letters and continues has not learned to answer.
    """

    def __init__(self, options: ExactMatchOptions) -> None:
        self._answer_field = options.answer_field

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns 1 or 0; a completion that ended is an answer. Raises: InvalidInput without an answer field."""
        answer = text_field(prompt, self._answer_field)
        answer_text = completion if finish is Finish.STOP else ""
        return Score(value=float(finish is Finish.STOP and completion == answer), answer=answer_text)
