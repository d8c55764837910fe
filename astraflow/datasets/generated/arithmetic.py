"""Generated sums of small numbers."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import GeneratedDataset, generated_prompt
from astraflow.datasets.shuffle import Shuffle
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy


class ArithmeticOptions(Config):
    """Sums to generate."""

    operation: Annotated[Literal["add", "subtract", "multiply"], SettableBy.AGENT] = "add"
    """`add`: `3+4=` with the answer `7`; `subtract`: `3-4=`, `-1`; `multiply`: `3*4=`, `12`."""
    digits: int = Field(default=1, ge=1, le=12)
    """Maximum digits of both numbers."""


@datasets.register("arithmetic", options=ArithmeticOptions)
class Arithmetic(GeneratedDataset):
    """Every pair of numbers, in an order shuffled by the seed. Fields: question, answer, expression (what a calculator
    reads)."""

    def __init__(self, options: ArithmeticOptions, seed: int) -> None:
        self._operation = options.operation
        self._numbers = int(10**options.digits)
        super().__init__(self._numbers**2)
        self._order = Shuffle(self.size, seed=seed)

    def _prompt(self, index: int) -> Prompt:
        """Returns a prompt such as `3+4=`."""
        left, right = divmod(self._order.item(index), self._numbers)
        match self._operation:
            case "add":
                sign, result = "+", left + right
            case "subtract":
                sign, result = "-", left - right
            case "multiply":
                sign, result = "*", left * right
        expression = f"{left}{sign}{right}"
        prompt = generated_prompt(self._operation, index, question=f"{expression}=", answer=str(result))
        return replace(prompt, fields={**prompt.fields, "expression": expression})
