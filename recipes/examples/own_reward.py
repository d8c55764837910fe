"""A reward of your own, with partial credit: the share of letters in the right place.

    astraflow --plugin recipes/examples/own_reward.py run recipes/examples/own_reward.toml

Copy both files, change the score, and keep the name in `register` equal to `kind` in the recipe.
"""

from typing import Annotated

from astraflow.contract.generation import Finish
from astraflow.contract.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.rewards.base import Score
from astraflow.runtime.config import Config
from astraflow.runtime.setting_permissions import SettableBy


class LettersInPlaceOptions(Config):
    """Options in the recipe, beside `kind`; each with its default and a documentation that `astraflow` shows."""

    answer_field: Annotated[str, SettableBy.AGENT] = "answer"
    """Field of the prompt with the right letters."""
    unfinished_penalty: float = 0.2
    """Subtracted when the answer was cut at its length limit."""


@rewards.register("letters_in_place", options=LettersInPlaceOptions)
class LettersInPlace:
    """Share of the answer's letters that the completion has in the same place, less for a cut answer."""

    def __init__(self, options: LettersInPlaceOptions) -> None:
        self._options = options

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns the score with its terms, which the page shows and charts.

        >>> from astraflow.contract.ids import PromptId
        >>> prompt = Prompt(id=PromptId("1"), fields={"question": "rev abcd=", "answer": "dcba"})
        >>> LettersInPlace(LettersInPlaceOptions()).score(prompt, "dcab", Finish.STOP).value
        0.5
        """
        answer = str(prompt.fields[self._options.answer_field])
        length = max(len(answer), len(completion), 1)
        right = sum(one == other for one, other in zip(answer, completion, strict=False)) / length
        penalty = 0.0 if finish is Finish.STOP else self._options.unfinished_penalty
        return Score(value=right - penalty, answer=completion, terms={"letters": right, "penalty": -penalty})
