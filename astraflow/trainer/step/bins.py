"""Bins of units, each of which becomes a pack: by the width that a pack has in a batching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from astraflow.trainer.engines.base import Batching, padded_tokens, rows_of_one_pass
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.packing import PackUnit, balanced_parts


class _EvenBins(Protocol):
    def __call__(self, units: Sequence[PackUnit], *, count: int, max_tokens: int) -> list[list[PackUnit]]: ...


class _FewestBins(Protocol):
    def __call__(self, units: Sequence[PackUnit], *, max_tokens: int) -> list[list[PackUnit]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BinMethod:
    """Division of units into bins for one batching."""

    fewest: _FewestBins
    """Divides units into as few bins as it finds, of at most `max_tokens` input tokens; a wider unit is alone."""
    even: _EvenBins
    """Divides units into `count` bins, at least as many as `fewest` needs, of similar width; surplus bins are empty."""
    width: Callable[[Sequence[PackUnit]], int]
    """Input tokens of a bin, with padding."""


def bins_of_ranks(
    divided: Sequence[Sequence[PackUnit]], *, max_tokens: int, cost: ForwardCost, batching: Batching
) -> list[list[list[PackUnit]]]:
    """Returns each rank's packs: as many on every rank, the most expensive first, because ranks wait for each other."""
    method = BINS[batching]
    count = max(len(method.fewest(units, max_tokens=max_tokens)) for units in divided)
    return [
        sorted(
            method.even(units, count=count, max_tokens=max_tokens),
            key=lambda units: -sum(unit.cost(cost) for unit in units),
        )
        for units in divided
    ]


def flat_width(units: Sequence[PackUnit]) -> int:
    """Returns the input tokens of a flat pack."""
    return sum(unit.width for unit in units)


def bins_of_units(
    units: Sequence[PackUnit], *, max_tokens: int, width: Callable[[PackUnit], int] = attrgetter("width")
) -> list[list[PackUnit]]:
    """Distributes units over as few bins of at most `max_tokens` tokens as first-fit decreasing finds."""
    bins: list[list[PackUnit]] = []
    free: list[int] = []
    for unit in sorted(units, key=lambda unit: -width(unit)):
        index = next((index for index, room in enumerate(free) if width(unit) <= room), None)
        if index is None:
            bins.append([])
            free.append(max_tokens)
            index = len(bins) - 1
        bins[index].append(unit)
        free[index] -= width(unit)
    return bins


def even_bins(
    units: Sequence[PackUnit], *, count: int, max_tokens: int, width: Callable[[PackUnit], int] = attrgetter("width")
) -> list[list[PackUnit]]:
    """Distributes units over `count` bins of similar width, or as `bins_of_units` where that exceeds `max_tokens`.

    count: at least the number of bins that `bins_of_units` needs. Surplus bins are empty.
    """
    parts = balanced_parts([float(width(unit)) for unit in units], count)
    bins = [[units[index] for index in part] for part in parts]
    if any(len(part) > 1 and sum(map(width, part)) > max_tokens for part in bins):
        bins = bins_of_units(units, max_tokens=max_tokens, width=width)
        bins += [[] for _ in range(count - len(bins))]
    return bins


def padded_width(units: Sequence[PackUnit]) -> int:
    """Returns the input tokens of rows that are padded to the longest."""
    return len(units) * max((unit.width for unit in units), default=0)


def bins_of_rows(units: Sequence[PackUnit], *, max_tokens: int) -> list[list[PackUnit]]:
    """Divides rows into bins of similar length, at most `max_tokens` wide with padding; a longer row is alone.

    A bin ends early where that saves more padding than a further pass costs.
    """
    bins: list[list[PackUnit]] = []
    rest = sorted(units, key=lambda unit: -unit.width)
    while rest:
        room = min(len(rest), max(max_tokens // max(rest[0].width, 1), 1))
        count = rows_of_one_pass([unit.width for unit in rest[:room]])
        bins.append(rest[:count])
        rest = rest[count:]
    return bins


def even_bins_of_rows(units: Sequence[PackUnit], *, count: int, max_tokens: int) -> list[list[PackUnit]]:
    """Divides rows into `count` bins, the widest as narrow as possible. count: at least that of `bins_of_rows`; surplus
    bins are empty."""
    low, high = 1, max_tokens
    while low < high:
        middle = (low + high) // 2
        if len(bins_of_rows(units, max_tokens=middle)) <= count:
            high = middle
        else:
            low = middle + 1
    bins = bins_of_rows(units, max_tokens=high)
    return bins + [[] for _ in range(count - len(bins))]


def tree_bins(units: Sequence[PackUnit], *, max_tokens: int) -> list[list[PackUnit]]:
    """Divides units with shared tokens and single rows into bins of their own: single rows are padded together."""
    groups, singles = _parted(units)
    return bins_of_units(groups, max_tokens=max_tokens, width=_padded) + bins_of_rows(singles, max_tokens=max_tokens)


def even_tree_bins(units: Sequence[PackUnit], *, count: int, max_tokens: int) -> list[list[PackUnit]]:
    """Divides units with shared tokens and single rows into `count` bins. count: at least that of `tree_bins`; surplus
    bins are empty."""
    groups, singles = _parted(units)
    rows = len(bins_of_rows(singles, max_tokens=max_tokens))
    of_groups = even_bins(groups, count=count - rows, max_tokens=max_tokens, width=_padded) if groups else []
    return of_groups + even_bins_of_rows(singles, count=count - len(of_groups), max_tokens=max_tokens)


def tree_width(units: Sequence[PackUnit]) -> int:
    """Returns the input tokens of units with shared tokens, with padding, and of single rows, padded together."""
    groups, singles = _parted(units)
    return padded_tokens([unit.width for unit in singles]) + sum(unit.padded_width for unit in groups)


def _parted(units: Sequence[PackUnit]) -> tuple[list[PackUnit], list[PackUnit]]:
    """Returns the units with shared tokens, and the single rows."""
    return [unit for unit in units if len(unit.rows) > 1], [unit for unit in units if len(unit.rows) == 1]


_padded = attrgetter("padded_width")
BINS: Mapping[Batching, BinMethod] = {
    Batching.PACKED: BinMethod(fewest=bins_of_units, even=even_bins, width=flat_width),
    Batching.TREE: BinMethod(fewest=tree_bins, even=even_tree_bins, width=tree_width),
    Batching.ROWS: BinMethod(fewest=bins_of_rows, even=even_bins_of_rows, width=padded_width),
}
