"""Generated programming problems: complete a function of one number from examples, for models too small for others."""

import operator
import random
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, GeneratedDataset
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class FunctionOptions(Config):
    """Functions to draw, and what is known about them."""

    size: int = Field(default=1000, ge=1)
    """Number of problems."""
    operations: Annotated[tuple[Literal["+", "-", "*"], ...], SettableBy.AGENT] = Field(
        default=("+", "-", "*"), min_length=1
    )
    """Operations of the functions `x + k`, `x - k` and `x * k`."""
    largest: int = Field(default=9, ge=2, le=1000)
    """Largest constant `k` and argument `x`; the smallest are 1 and 0."""
    examples: int = Field(default=2, ge=1, le=8)
    """Values of the function in the question."""
    tests: int = Field(default=3, ge=1, le=32)
    """Calls of the function that decide whether it is correct; the arguments of most differ from the examples."""


@datasets.register("functions", options=FunctionOptions)
class Functions(GeneratedDataset):
    """Generated programming problems: a function whose values are given.

    Fields: question (values of a function `f`), answer (a solution in a fenced block), tests, as of the dataset
    `code`."""

    def __init__(self, options: FunctionOptions, seed: int) -> None:
        super().__init__(options.size)
        self._options = options
        self._seed = seed

    def _prompt(self, index: int) -> Prompt:
        """Returns problem number `index`."""
        options = self._options
        rng = random.Random(f"functions/{self._seed}/{index}")
        operation, constant = rng.choice(options.operations), rng.randint(1, options.largest)
        compute = _OPERATIONS[operation]
        shown = sorted(rng.sample(range(1, options.largest + 1), min(options.examples, options.largest)))
        tests: list[Json] = [
            {"kind": "call", "function": "f", "arguments": [number], "expected": [compute(number, constant)]}
            for number in (rng.randint(0, 10 * options.largest) for _ in range(options.tests))
        ]
        fields: dict[str, Json] = {
            QUESTION: "\n".join(f"f({number})={compute(number, constant)}" for number in shown),
            ANSWER: f"```python\ndef f(x):\n    return x{operation}{constant}\n```",
            "tests": tests,
        }
        return Prompt(id=PromptId(f"functions:{index}"), fields=fields)
