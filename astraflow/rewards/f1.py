"""Reward for the overlap of words with reference answers.

Source: SQuAD, arXiv:1606.05250 (normalization); ASearcher, arXiv:2508.07976 (sets of words, augmented answers).
"""

import re
import string
from typing import Annotated, Literal

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import ANSWER
from astraflow.rewards import rewards
from astraflow.rewards.base import Score, last_tagged, text_field
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class F1Options(Config):
    """Metric, and where the answers are."""

    metric: Annotated[Literal["f1", "exact_match"], SettableBy.AGENT] = "f1"
    """`f1`: harmonic mean of precision and recall of the set of words; `exact_match`: 1 for equal texts, else 0."""
    answers_field: Annotated[str, SettableBy.AGENT] = "answers"
    """Field of the prompt with a list of answers: the reference first, then its other forms."""
    answer_field: Annotated[str, SettableBy.AGENT] = ANSWER
    """Field with the only answer, for prompts without that list."""
    tag: Annotated[str, SettableBy.AGENT] = ""
    """Tag around the answer in the completion, such as `answer`; the last one counts, and a completion without one
    scores 0. Empty: the whole completion is the answer."""
    max_answer_chars: int = Field(default=20_000, ge=1)
    """A longer answer scores 0. Characters."""
    augmented_weight: float = Field(default=0.3, ge=0, le=1)
    """Weight of the best match among all forms of the answer; the rest is the match with the reference."""

    @property
    def prompt_fields(self) -> tuple[tuple[str, ...], ...]:
        """Fields of the prompt that the reward needs."""
        return ((self.answers_field, self.answer_field),)


@rewards.register("f1", options=F1Options)
class F1:
    """Returns `(1 - w) * match(reference) + w * max(match(form) for all forms)`, in 0 to 1.

    Texts are compared without case, punctuation and articles; a reference of nothing else only without case.
    """

    def __init__(self, options: F1Options) -> None:
        self._options = options

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        """Returns the match with the normalized answer. Raises: InvalidInput when the prompt has no answers."""
        reference, *others = self._answers(prompt)
        answer = last_tagged(completion, self._options.tag) if self._options.tag else completion
        if answer is None or len(answer) > self._options.max_answer_chars:
            return Score(value=0.0)
        first = self._match(reference, answer)
        best = max([first, *(self._match(other, answer) for other in others)])
        weight = self._options.augmented_weight
        return Score(value=(1 - weight) * first + weight * best, answer=normalized_words(answer))

    def _answers(self, prompt: Prompt) -> list[str]:
        listed = prompt.fields.get(self._options.answers_field)
        if listed is None:
            return [text_field(prompt, self._options.answer_field)]
        if not isinstance(listed, list) or not listed or not all(isinstance(item, str) for item in listed):
            raise InvalidInput(
                f"cannot score prompt {prompt.id!r}: its field {self._options.answers_field!r} is not a list of texts; "
                "set answers_field to a field with one, or to a missing field to use answer_field",
                code="reward.no_answer_list",
            )
        return [str(item) for item in listed]

    def _match(self, reference: str, answer: str) -> float:
        wanted, words = normalized_words(reference), normalized_words(answer)
        if not wanted:  # "The", "A" and "?" are answers, too
            return float(reference.strip().lower() == answer.strip().lower())
        return float(wanted == words) if self._options.metric == "exact_match" else word_f1(wanted, words)


def normalized_words(text: str) -> str:
    """Returns the text in lower case, without punctuation and articles, its words separated by one space.

    >>> normalized_words("The Eiffel Tower, (Paris)")
    'eiffel tower paris'
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def word_f1(answer: str, candidate: str) -> float:
    """Returns the F1 of two normalized texts as sets of words; 1 for two empty texts.

    >>> word_f1("eiffel tower", "tower paris")
    0.5
    """
    wanted, words = set(answer.split()), set(candidate.split())
    if not wanted or not words:
        return float(wanted == words)
    return 2 * len(wanted & words) / (len(wanted) + len(words))
