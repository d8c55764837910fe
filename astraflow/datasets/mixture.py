"""Several data sets as one, in fixed shares."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from astraflow.contract.ids import PromptId
from astraflow.contract.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset, Share, check_index
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy


class PartOptions(Config):
    """One data set of the mixture."""

    dataset: Annotated[dict[str, Any], SetBy.RECIPE]
    """A kind and its options."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Its share of the prompts issued is this over the sum of all weights, whatever its size."""

    @field_validator("dataset")
    @classmethod
    def _known(cls, dataset: dict[str, Any]) -> dict[str, Any]:
        datasets.check(dataset)
        return dataset


class MixtureOptions(Config):
    """What is mixed."""

    parts: dict[str, PartOptions] = Field(min_length=1)
    """By name, which begins the ids of its prompts and its figures in the report."""


@datasets.register("mixture", options=MixtureOptions)
class Mixture:
    """The parts one after the other; their shares are kept by whoever chooses prompts."""

    def __init__(self, options: MixtureOptions, seed: int) -> None:
        self._parts: dict[str, Dataset] = {
            name: datasets.build(part.dataset, seed) for name, part in options.parts.items()
        }
        self._weights = {name: part.weight for name, part in options.parts.items()}

    @property
    def size(self) -> int:
        """Prompts of all parts."""
        return sum(part.size for part in self._parts.values())

    @property
    def fingerprint(self) -> str:
        """Of each part, in the order of their prompts; weights may change."""
        return ", ".join(f"{name}: {part.fingerprint}" for name, part in self._parts.items())

    @property
    def shares(self) -> tuple[Share, ...]:
        """Of each part."""
        return tuple(Share(name=name, size=part.size, weight=self._weights[name]) for name, part in self._parts.items())

    def prompt(self, index: int) -> Prompt:
        """A part's prompt, as `part/id`."""
        check_index(index, self.size)
        parts = iter(self._parts.items())
        name, part = next(parts)
        while index >= part.size:
            index -= part.size
            name, part = next(parts)
        prompt = part.prompt(index)
        return Prompt(id=PromptId(f"{name}/{prompt.id}"), fields=prompt.fields)
