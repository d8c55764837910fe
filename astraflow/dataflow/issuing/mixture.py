"""Prompts of several data sets in fixed shares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.contract.ids import Version
from astraflow.contract.values import Json
from astraflow.dataflow.issuing.selection import Rewards, Selector
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.rows import RowKeeper
from astraflow.datasets.base import Dataset, MixedDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPart:
    """One data set of a mixture: its prompts are `first` to `first + size - 1` of the whole."""

    name: str
    weight: float
    first: int
    size: int
    selector: Selector


_ROUNDING = 1e-6
"""More than a share of any number of prompts is off by in floating point."""


class Mixture:
    """Chooses the part whose next prompt is due first, then has the part's own selector choose within it.

    After n prompts each part has had its share of n up to one prompt, and its state is a count a part. The weights
    belong to the data (they are the dataset kind `mixture`), the selector to the flow: any selector works in each part.
    Just taking the part that is furthest behind would let others fall behind by more than a prompt.
    Source: Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980).
    """

    def __init__(self, parts: tuple[MixedPart, ...]) -> None:
        self._parts = parts
        self._total_weight = sum(part.weight for part in parts)
        self._counts = [0] * len(parts)

    def select(self) -> int:
        """The next prompt of the part that is to have one."""
        number = self._due()
        self._counts[number] += 1
        part = self._parts[number]
        return part.first + part.selector.select()

    def observe(self, index: int, rewards: Rewards) -> None:
        """The part that the prompt is of learns."""
        part = next(part for part in self._parts if index < part.first + part.size)
        part.selector.observe(index - part.first, rewards)

    def advance(self, version: Version) -> None:
        """Every part's selector hears of it."""
        for part in self._parts:
            part.selector.advance(version)

    def state_dict(self) -> dict[str, Json]:
        """Weight of each part, prompts chosen of it with these weights, and the state of its selector."""
        return {
            part.name: {"weight": part.weight, "count": count, "selector": part.selector.state_dict()}
            for part, count in zip(self._parts, self._counts, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Where weights are others by now, shares count from here: nothing is caught up on."""
        has_same_weights = all(state[part.name]["weight"] == part.weight for part in self._parts)
        self._counts = [state[part.name]["count"] if has_same_weights else 0 for part in self._parts]
        for part in self._parts:
            part.selector.load_state_dict(state[part.name]["selector"])

    def changed_rows(self) -> dict[int, Json]:
        """Of all parts."""
        return self._numbered(lambda keeper: keeper.changed_rows())

    def all_rows(self) -> dict[int, Json]:
        """Of all parts."""
        return self._numbered(lambda keeper: keeper.all_rows())

    def load_rows(self, rows: Mapping[int, Json]) -> None:
        """Each part gets its own."""
        for part in self._parts:
            if isinstance(part.selector, RowKeeper):
                own = range(part.first, part.first + part.size)
                part.selector.load_rows({index - part.first: row for index, row in rows.items() if index in own})

    def metrics(self) -> dict[str, float]:
        """Prompts chosen of each part, and what its selector says."""
        figures = {f"{part.name}.chosen": float(count) for part, count in zip(self._parts, self._counts, strict=True)}
        for part in self._parts:
            figures |= {f"{part.name}.{name}": value for name, value in part.selector.metrics().items()}
        return figures

    def _due(self) -> int:
        """The part to choose from: of those that may have a prompt already, the one that must have it soonest.

        With k parts and slack 1 / (2k - 2), a part may have its next prompt when that puts it no more than 1 - slack
        ahead of its share, and must have it before it is 1 - slack behind.
        """
        slack = 1 / max(1, 2 * len(self._parts) - 2)
        issued = sum(self._counts) + 1
        shares = [part.weight / self._total_weight for part in self._parts]
        behind = [share * issued - count for share, count in zip(shares, self._counts, strict=True)]
        ready = [number for number, by in enumerate(behind) if by >= slack - _ROUNDING]
        return min(ready, key=lambda number: (1 - slack - behind[number]) / shares[number])

    def _numbered(self, rows_of: Callable[[RowKeeper], Mapping[int, Json]]) -> dict[int, Json]:
        return {
            part.first + index: row
            for part in self._parts
            if isinstance(part.selector, RowKeeper)
            for index, row in rows_of(part.selector).items()
        }


def build_selector(spec: Mapping[str, Any], dataset: Dataset, seed: int) -> Selector:
    """The selector of a flow; for a mixed data set, one for each part of it. Raises: InvalidInput."""
    if not isinstance(dataset, MixedDataset):
        return selectors.build(spec, dataset.size, seed)
    parts: list[MixedPart] = []
    first = 0
    for share in dataset.shares:
        selector = selectors.build(spec, share.size, seed)
        parts.append(MixedPart(name=share.name, weight=share.weight, first=first, size=share.size, selector=selector))
        first += share.size
    return Mixture(tuple(parts))
