"""Strings to be reversed or sorted: the smallest tasks that a model from scratch visibly learns."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from astraflow.contract.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import made_up, sampled_fingerprint
from astraflow.datasets.shuffle import Shuffle
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy


class LettersOptions(Config):
    """Which strings, and what to do with them."""

    operation: Literal["reverse", "sort"] = "reverse"
    """`rev abcd=` is answered `dcba`; `sort 3142=` is answered `1234`."""
    length: int = Field(default=4, ge=1, le=64)
    """Characters of each string."""
    alphabet: Annotated[str, SetBy.AGENT] = Field(default="abcdefgh", min_length=2)
    """Characters that strings are made of."""

    @field_validator("alphabet")
    @classmethod
    def _distinct(cls, alphabet: str) -> str:
        if len(set(alphabet)) < len(alphabet) or any(letter.isspace() for letter in alphabet):
            raise ValueError("must be different characters, none of them white space")
        return alphabet


@datasets.register("letters", options=LettersOptions)
class Letters:
    """Every string of that length over the alphabet, in an order that the seed shuffles."""

    def __init__(self, options: LettersOptions, seed: int) -> None:
        self._options = options
        self._order = Shuffle(self.size, seed=seed)

    @property
    def size(self) -> int:
        """All strings there are."""
        return int(len(self._options.alphabet) ** self._options.length)

    @property
    def fingerprint(self) -> str:
        """Of the prompts."""
        return sampled_fingerprint(self)

    def prompt(self, index: int) -> Prompt:
        """`rev abcd=` or `sort 3142=`."""
        given = self._string(self._order.item(index))
        if self._options.operation == "reverse":
            return made_up("reverse", index, question=f"rev {given}=", answer=given[::-1])
        return made_up("sort", index, question=f"sort {given}=", answer="".join(sorted(given)))

    def _string(self, number: int) -> str:
        alphabet = self._options.alphabet
        letters = []
        for _ in range(self._options.length):
            number, digit = divmod(number, len(alphabet))
            letters.append(alphabet[digit])
        return "".join(letters)
