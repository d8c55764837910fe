"""Goals of WebShop (arXiv:2207.01206), by number. The shop, which states and judges them, is an environment."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index, sampled_fingerprint
from astraflow.datasets.known import SAMPLES
from astraflow.datasets.tables.base import Wanted
from astraflow.datasets.tables.lines import LineTable
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy

_WANTED: Wanted = {"instruction_text": (str,), "asin": (str,)}
_TEST, _EVAL = 500, 1500
"""Goals below the first are for tests, those below the second for choosing between models, the rest for training."""


class WebshopOptions(Config):
    """Which goals."""

    split: Literal["train", "eval", "test", "all"] = "train"
    """As published: test is 0 to 499, eval 500 to 1499, train the rest."""
    goals: int = Field(default=12_087, ge=1)
    """Goals of the shop: those that people wrote, when it has all its products."""
    path: Annotated[str, SetBy.PLACE] = ""
    """The goals themselves, `env.server.goals`, as one JSON object a line; without it the shop alone knows them."""
    is_sample: bool = False
    """A few made-up goals, all of them in every split."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.is_sample and self.path:
            raise ValueError("a sample has no path: leave out one of the two")
        return self


@datasets.register("webshop", options=WebshopOptions)
class Webshop:
    """Fields: question (what to buy), answer (empty: the shop decides), goal (its number), asin (or null)."""

    def __init__(self, options: WebshopOptions, _seed: int) -> None:
        path = str(SAMPLES / "webshop.jsonl") if options.is_sample else options.path
        self._table = LineTable(path, _WANTED) if path else None
        self._prefix = "sample/webshop" if options.is_sample else "webshop"
        count = self._table.size if self._table else options.goals
        split = "all" if options.is_sample else options.split
        self._goals = {
            "train": range(_EVAL, count),
            "eval": range(_TEST, min(_EVAL, count)),
            "test": range(min(_TEST, count)),
            "all": range(count),
        }[split]
        if not self._goals:
            raise InvalidInput(f"the shop has {count} goals, so none is in the split {split!r}; `all` takes every goal")

    @property
    def size(self) -> int:
        """Goals of the split."""
        return len(self._goals)

    @property
    def fingerprint(self) -> str:
        """Of the file, or of the numbers."""
        return f"{self._table.fingerprint}{self._goals}" if self._table else sampled_fingerprint(self)

    def prompt(self, index: int) -> Prompt:
        """Goal number `index` of the split."""
        check_index(index, self.size)
        goal = self._goals[index]
        row: dict[str, Json] = self._table.row(goal) if self._table else {}
        fields: dict[str, Json] = {
            QUESTION: str(row.get("instruction_text", f"WebShop, goal {goal}: the shop says what to buy.")),
            ANSWER: "",
            "goal": goal,
            "asin": row.get("asin"),
        }
        return Prompt(id=PromptId(f"{self._prefix}:{goal}"), fields=fields)
