"""Generated strings to reverse or sort: the smallest tasks that a model trained from scratch visibly learns."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, field_validator

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import HISTORY, GeneratedDataset, generated_prompt
from astraflow.datasets.shuffle import Shuffle
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class LettersOptions(Config):
    """Strings to generate, and the operation on them."""

    operation: Annotated[Literal["reverse", "sort"], SettableBy.AGENT] = "reverse"
    """`reverse`: `rev abcd=` with the answer `dcba`; `sort`: `sort 3142=` with the answer `1234`."""
    length: int = Field(default=4, ge=1, le=64)
    """Characters of each string."""
    alphabet: Annotated[str, SettableBy.AGENT] = Field(default="abcdefgh", min_length=2)
    """Characters of the strings."""
    history_format: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Messages before the question, alternately of user and assistant, for a warm start with conversations. They have
    the placeholders of `question_format`."""
    question_format: Annotated[str, SettableBy.AGENT] = ""
    """Question instead of the operation's; the placeholders `{text}` and `{answer}` are the string and its answer."""
    answer_format: Annotated[str, SettableBy.AGENT] = "{answer}"
    """Answer with the same placeholders; for the warm start of an agent, it can be the call of a tool."""

    @field_validator("alphabet")
    @classmethod
    def _distinct(cls, alphabet: str) -> str:
        if len(set(alphabet)) < len(alphabet) or any(letter.isspace() for letter in alphabet):
            raise ValueError("the characters must be different, and none may be white space")
        return alphabet


@datasets.register("letters", options=LettersOptions)
class Letters(GeneratedDataset):
    """All strings of `length` characters of the alphabet, in an order shuffled by the seed."""

    def __init__(self, options: LettersOptions, seed: int) -> None:
        super().__init__(int(len(options.alphabet) ** options.length))
        self._options = options
        self._order = Shuffle(self.size, seed=seed)

    def _prompt(self, index: int) -> Prompt:
        """Returns a prompt such as `rev abcd=` or `sort 3142=`."""
        options = self._options
        text = self._string(self._order.item(index))
        is_reverse = options.operation == "reverse"
        answer = text[::-1] if is_reverse else "".join(sorted(text))
        question_format = options.question_format or ("rev {text}=" if is_reverse else "sort {text}=")

        def fill(template: str) -> str:
            return template.replace("{text}", text).replace("{answer}", answer)

        question, final = fill(question_format), fill(options.answer_format)
        prompt = generated_prompt(options.operation, index, question=question, answer=final)
        history: list[Json] = [fill(template) for template in options.history_format]
        return replace(prompt, fields={**prompt.fields, HISTORY: history}) if history else prompt

    def _string(self, number: int) -> str:
        alphabet = self._options.alphabet
        letters = []
        for _ in range(self._options.length):
            number, digit = divmod(number, len(alphabet))
            letters.append(alphabet[digit])
        return "".join(letters)
