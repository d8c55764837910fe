"""Selects prompts of several datasets in fixed shares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.selectors import Rewards, Selector, selectors
from astraflow.dataflow.storage.prompt_rows import RowProvider
from astraflow.datasets.base import Dataset, MixedDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePart:
    """One dataset of a mixture: its prompts have the indices `first_index` to `first_index + size - 1`."""

    name: str
    weight: float
    first_index: int
    size: int
    selector: Selector


_ROUNDING = 1e-6
"""Larger than the floating-point error of a share of any number of prompts."""


class MixtureSelector:
    """Chooses the part whose next prompt is due first; the part's own selector then chooses within it.

    After n prompts each part has had its share of n within one prompt. The state is one count per part. The weights
    belong to the data (the dataset kind `mixture`), the selector to the flow: any selector works in each part.
    Always choosing the part that is furthest behind would let other parts fall behind by more than one prompt.
    Source: Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980).
    """

    def __init__(self, parts: tuple[MixturePart, ...]) -> None:
        self._parts = parts
        self._total_weight = sum(part.weight for part in parts)
        self._counts = [0] * len(parts)

    def select(self) -> int:
        """Returns the next prompt of the part that is due."""
        part_index = self._due()
        self._counts[part_index] += 1
        part = self._parts[part_index]
        return part.first_index + part.selector.select()

    def observe(self, index: int, rewards: Rewards) -> None:
        """Passes the rewards to the selector of the prompt's part."""
        part = next(part for part in self._parts if index < part.first_index + part.size)
        part.selector.observe(index - part.first_index, rewards)

    def advance(self, version: Version) -> None:
        """Passes the version to the selector of every part."""
        for part in self._parts:
            part.selector.advance(version)

    def state_dict(self) -> dict[str, Json]:
        """Returns, per part, its weight, the prompts chosen with the current weights, and its selector's state."""
        return {
            part.name: {"weight": part.weight, "count": count, "selector": part.selector.state_dict()}
            for part, count in zip(self._parts, self._counts, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state. If weights have changed, counts start at 0 so that no part catches up."""
        has_same_weights = all(state[part.name]["weight"] == part.weight for part in self._parts)
        self._counts = [state[part.name]["count"] if has_same_weights else 0 for part in self._parts]
        for part in self._parts:
            part.selector.load_state_dict(state[part.name]["selector"])

    def changed_rows(self) -> dict[int, Json]:
        """Returns the changed rows of all parts."""
        return self._numbered(lambda provider: provider.changed_rows())

    def all_rows(self) -> dict[int, Json]:
        """Returns the rows of all parts."""
        return self._numbered(lambda provider: provider.all_rows())

    def load_rows(self, rows: Mapping[int, Json]) -> None:
        """Restores the rows of each part."""
        for part in self._parts:
            if isinstance(part.selector, RowProvider):
                own = range(part.first_index, part.first_index + part.size)
                part.selector.load_rows({index - part.first_index: row for index, row in rows.items() if index in own})

    def metrics(self) -> dict[str, float]:
        """Returns the prompts chosen per part and the metrics of the parts' selectors."""
        figures = {f"{part.name}.chosen": float(count) for part, count in zip(self._parts, self._counts, strict=True)}
        for part in self._parts:
            figures |= {f"{part.name}.{name}": value for name, value in part.selector.metrics().items()}
        return figures

    def _due(self) -> int:
        """Returns the index of the part with the earliest deadline among those that may have a prompt now.

        With k parts and slack 1 / (2k - 2), a part may have its next prompt when that puts it at most 1 - slack ahead
        of its share, and must have it before it is 1 - slack behind.
        """
        slack = 1 / max(1, 2 * len(self._parts) - 2)
        issued = sum(self._counts) + 1
        shares = [part.weight / self._total_weight for part in self._parts]
        behind = [share * issued - count for share, count in zip(shares, self._counts, strict=True)]
        ready = [part_index for part_index, gap in enumerate(behind) if gap >= slack - _ROUNDING]
        return min(ready, key=lambda part_index: (1 - slack - behind[part_index]) / shares[part_index])

    def _numbered(self, rows_of: Callable[[RowProvider], Mapping[int, Json]]) -> dict[int, Json]:
        return {
            part.first_index + index: row
            for part in self._parts
            if isinstance(part.selector, RowProvider)
            for index, row in rows_of(part.selector).items()
        }


def build_selector(spec: Mapping[str, Any], dataset: Dataset, seed: int) -> Selector:
    """Builds the selector of a flow; for a mixed dataset, one per part. Raises: InvalidInput."""
    if not isinstance(dataset, MixedDataset):
        return selectors.build(spec, dataset.size, seed)
    parts: list[MixturePart] = []
    first = 0
    for share in dataset.shares:
        selector = selectors.build(spec, share.size, seed)
        parts.append(
            MixturePart(name=share.name, weight=share.weight, first_index=first, size=share.size, selector=selector)
        )
        first += share.size
    return MixtureSelector(tuple(parts))
