"""Goals of WebShop (arXiv:2207.01206), by number. The shop, an environment, states and judges them.

The goals of a store, generated or from the published files, come with their texts. Give the environment the same store.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, check_index, sampled_fingerprint
from astraflow.datasets.published.loading import SAMPLES
from astraflow.datasets.tables.base import RequiredFields
from astraflow.datasets.tables.lines import LineTable
from astraflow.datasets.worlds.webshop_files import open_store
from astraflow.datasets.worlds.webshop_store import StoreOptions
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_REQUIRED_FIELDS: RequiredFields = {"instruction_text": (str,), "asin": (str,)}
_TEST, _EVAL = 500, 1500
"""Goals below the first number are for tests, those below the second for model selection, the rest for training."""


class WebshopOptions(Config):
    """Goals to use."""

    split: Annotated[Literal["train", "eval", "test", "all"], SettableBy.AGENT] = "train"
    """As published: test is 0 to 499, eval 500 to 1499, train the rest."""
    goals: int = Field(default=12_087, ge=1)
    """Number of goals of the shop; by default the human-written goals with all its products."""
    path: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """File of the goals (`env.server.goals`), one JSON object per line; empty: only the goal's number is known."""
    is_sample: Annotated[bool, SettableBy.AGENT] = False
    """Use a few made-up goals, all of them in every split."""
    store: StoreOptions | None = None
    """Store with the goals, the same as that of the environment; absent: goals by number, or from `path`."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.is_sample + bool(self.path) + (self.store is not None) > 1:
            raise ValueError("goals have one source; give one of `is_sample`, `path` and `store`")
        return self


@datasets.register("webshop", options=WebshopOptions)
class Webshop:
    """Goals of WebShop: products to buy.

    Fields: question (what to buy), answer (empty: the shop decides), goal (its number), asin (or null).
    """

    def __init__(self, options: WebshopOptions, _seed: int) -> None:
        path = str(SAMPLES / "webshop.jsonl") if options.is_sample else options.path
        self._table = LineTable(path, _REQUIRED_FIELDS) if path else None
        self._store = open_store(options.store) if options.store else None
        self._prefix = "sample/webshop" if options.is_sample else "webshop"
        available = self._table.size if self._table else self._store.goal_count if self._store else None
        count = options.goals if available is None else available
        split = "all" if options.is_sample else options.split
        self._goals = {
            "train": range(_EVAL, count),
            "eval": range(_TEST, min(_EVAL, count)),
            "test": range(min(_TEST, count)),
            "all": range(count),
        }[split]
        if not self._goals:
            raise InvalidInput(
                f"cannot use split {split!r}: the shop has {count} goals, and none of them is in this split; use `all`",
                code="dataset.empty",
            )

    @property
    def size(self) -> int:
        """Number of goals of the split."""
        return len(self._goals)

    @property
    def fingerprint(self) -> str:
        return f"{self._table.fingerprint}{self._goals}" if self._table else sampled_fingerprint(self)

    def prompt(self, index: int) -> Prompt:
        """Returns goal number `index` of the split."""
        check_index(index, self.size)
        goal = self._goals[index]
        row: dict[str, Json] = self._table.row(goal) if self._table else self._stored(goal)
        fields: dict[str, Json] = {
            QUESTION: str(row.get("instruction_text", f"WebShop, goal {goal}: the shop says what to buy.")),
            ANSWER: "",
            "goal": goal,
            "asin": row.get("asin"),
        }
        return Prompt(id=PromptId(f"{self._prefix}:{goal}"), fields=fields)

    def _stored(self, number: int) -> dict[str, Json]:
        if self._store is None:
            return {}
        goal = self._store.goal(number)
        return {"instruction_text": goal.instruction, "asin": goal.product.asin}
