"""Right or wrong, letter by letter."""

from typing import Annotated

from astraflow.contract.errors import InvalidInput
from astraflow.contract.generation import Finish
from astraflow.contract.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.rewards.base import Score
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy


class ExactMatchOptions(Config):
    """Where the right answer is."""

    answer_field: Annotated[str, SetBy.AGENT] = "answer"
    """Field of the prompt."""


@rewards.register("exact_match", options=ExactMatchOptions)
class ExactMatch:
    """1 when the completion is the answer and the model ended it by itself, else 0.

    Ending belongs to the answer: a model that writes the right letters and goes on has not learned to answer.
    """

    def __init__(self, options: ExactMatchOptions) -> None:
        self._answer_field = options.answer_field

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """1 or 0; a completion that ended is an answer. Raises: InvalidInput when the prompt has none to compare."""
        answer = prompt.fields.get(self._answer_field)
        if not isinstance(answer, str):
            known = ", ".join(sorted(prompt.fields))
            raise InvalidInput(f"prompt {prompt.id} has no text in field {self._answer_field!r}; it has {known}")
        given = completion if finish is Finish.STOP else ""
        return Score(value=float(finish is Finish.STOP and completion == answer), answer=given)
