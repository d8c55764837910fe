"""Mixture of several datasets in fixed shares."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset, DatasetShare, check_index
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

PART = "part"
"""Field with the name of a prompt's part, unless the part's data has a field of that name."""


class PartOptions(Config):
    """One dataset of the mixture."""

    dataset: Annotated[dict[str, Any], SettableBy.RECIPE]
    """Kind and options of the dataset."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The dataset's share of the issued prompts is this weight over the sum of all weights, independent of its size."""

    @field_validator("dataset")
    @classmethod
    def _known(cls, dataset: dict[str, Any]) -> dict[str, Any]:
        datasets.check(dataset)
        return dataset


class MixtureOptions(Config):
    """Datasets to mix."""

    parts: dict[str, PartOptions] = Field(min_length=1)
    """By name, which prefixes the ids of its prompts and its figures in the report."""


@datasets.register("mixture", options=MixtureOptions)
class Mixture:
    """Concatenated datasets; the selector of the flow implements their shares."""

    def __init__(self, options: MixtureOptions, seed: int) -> None:
        self._parts: dict[str, Dataset] = {
            name: datasets.build(part.dataset, seed) for name, part in options.parts.items()
        }
        self._weights = {name: part.weight for name, part in options.parts.items()}

    @property
    def size(self) -> int:
        """Number of prompts of all parts."""
        return sum(part.size for part in self._parts.values())

    @property
    def fingerprint(self) -> str:
        """Fingerprints of the parts, in order; weights are left out, because they may change."""
        return ", ".join(f"{name}: {part.fingerprint}" for name, part in self._parts.items())

    @property
    def shares(self) -> tuple[DatasetShare, ...]:
        """Shares of the parts."""
        return tuple(
            DatasetShare(name=name, size=part.size, weight=self._weights[name]) for name, part in self._parts.items()
        )

    def prompt(self, index: int) -> Prompt:
        """Returns a prompt of a part, with the id `part/id` and the name of the part as field `part`."""
        check_index(index, self.size)
        parts = iter(self._parts.items())
        name, part = next(parts)
        while index >= part.size:
            index -= part.size
            name, part = next(parts)
        prompt = part.prompt(index)
        return Prompt(id=PromptId(f"{name}/{prompt.id}"), fields={PART: name, **prompt.fields})
