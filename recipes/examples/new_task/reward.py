"""The reward of my-task: the share of letters in the right place, less for an answer that was cut."""

from typing import Annotated

from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.rewards.base import Score
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class MyTaskOptions(Config):
    """Options of the reward in the recipe, in addition to `kind`."""

    answer_field: Annotated[str, SettableBy.AGENT] = "answer"
    """Field of a question with the right answer."""
    unfinished_penalty: float = 0.2
    """Subtracted when the answer was cut at its length limit."""


@rewards.register("my_task", options=MyTaskOptions)
class MyTask:
    """Share of the letters of the right answer that the completion has in the same place."""

    def __init__(self, options: MyTaskOptions) -> None:
        self._options = options

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns the score with its terms, which the page shows. An exception is a failed episode, never a reward."""
        answer = str(prompt.fields[self._options.answer_field])
        length = max(len(answer), len(completion), 1)
        right = sum(expected == actual for expected, actual in zip(answer, completion, strict=False)) / length
        penalty = 0.0 if finish is Finish.STOP else self._options.unfinished_penalty
        return Score(value=right - penalty, answer=completion, terms={"letters": right, "penalty": -penalty})
