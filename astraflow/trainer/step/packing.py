"""Packing of rows into flat forward passes without padding; a prompt that a group shares is in a pack once."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.trainer.engines.base import PASS_TOKENS, Batching, Pack, Segment, padded_tokens
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.rows import StepRows
from astraflow.trainer.step.shared_prompts import PromptCluster, prompt_clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class PackUnit:
    """Rows that are computed together: a common prefix, then the remaining tokens of each row (`input_length`)."""

    rows: tuple[int, ...]
    """Indices of the rows in the batch."""
    prefix_length: int
    """0 when the unit is one row."""
    width: int
    """Input tokens."""
    pairs: int
    """Pairs of a token and a token that it attends to."""
    targets: int
    """Trained tokens."""
    padded_width: int = 0
    """Input tokens when rows of similar length are padded to the longest of them after the prefix."""

    def cost(self, forward: ForwardCost) -> float:
        """Returns the FLOPs of a forward pass."""
        return forward.flops(tokens=self.width, pairs=self.pairs, targets=self.targets)


def input_length(length: int, prefix: int) -> int:
    """Returns the number of input tokens of a row of `length` tokens after a common prefix.

    The last token is predicted but predicts nothing, so it is not part of the input, except where it makes the length a
    multiple of 16, for which attention on a CPU is faster than for one token less.

    >>> input_length(100, 0), input_length(128, 0), input_length(128, 28)
    (99, 128, 99)
    """
    own = length - prefix
    return own if own % _ALIGNMENT == 0 else own - 1


_ALIGNMENT = 16


def pack_units(rows: StepRows, included: Iterable[int], *, max_tokens: int) -> list[PackUnit]:
    """Divides the included rows into units of at most `max_tokens` tokens; a longer row is a unit of its own.

    Rows of a group share a unit, and the computation of their first context tokens, where that saves most
    (`shared_prompts`). Rows of different slots (several trajectories of one task) are not mixed.
    Raises: InvalidInput when a trajectory begins with a model-written token, which no context predicts.
    """
    members: dict[tuple[str, int], list[int]] = {}
    for row in included:
        members.setdefault((rows.rows.groups[row], rows.slots[row]), []).append(row)
    return [
        unit
        for slot in members.values()
        for cluster in prompt_clusters({row: rows.prompt(row) for row in slot})
        for unit in _units_of_cluster(rows, cluster, max_tokens)
    ]


def split_unit(rows: StepRows, unit: PackUnit) -> list[PackUnit]:
    """Returns two units with half of the rows each; the prefix is computed in both."""
    half = (len(unit.rows) + 1) // 2
    return [_unit(rows, part, unit.prefix_length) for part in (unit.rows[:half], unit.rows[half:])]


def single_rows(rows: StepRows, units: Iterable[PackUnit]) -> list[PackUnit]:
    """Returns a unit for each row of these units; shared prompts are computed in each."""
    return [_unit(rows, [row], 0) for unit in units for row in unit.rows]


def units_of_batching(rows: StepRows, units: Sequence[PackUnit], batching: Batching) -> list[PackUnit]:
    """Returns the units as a batching computes them: a tree shares the prompts of one length when that saves more
    tokens than the two passes are worth, one for the prompts and one for the rows that continue them."""
    if batching is Batching.PACKED:
        return list(units)
    saved: Counter[int] = Counter()
    for unit in units if batching is Batching.TREE else ():
        saved[unit.prefix_length] += (len(unit.rows) - 1) * unit.prefix_length
    return [
        part
        for unit in units
        for part in ([unit] if saved[unit.prefix_length] > 2 * PASS_TOKENS else single_rows(rows, [unit]))
    ]


def build_pack(rows: StepRows, units: Sequence[PackUnit]) -> Pack:
    """Lays the units out in one flat pack. Without units it is an empty pack: one input token and no target."""
    if not units:
        return _EMPTY_PACK
    layout = _Layout()
    for unit in units:
        layout.add(rows, unit)
    return layout.pack(rows.columns.tokens)


_EMPTY_PACK = Pack(
    input_ids=torch.zeros(1, dtype=torch.int64),
    positions=torch.zeros(1, dtype=torch.int64),
    segments=(Segment(begin=0, end=1),),
    predictors=torch.zeros(0, dtype=torch.int64),
    targets=torch.zeros(0, dtype=torch.int64),
)


def pack_sequences(sequences: Sequence[npt.NDArray[np.integer]], scored_from: Sequence[int]) -> Pack:
    """Returns a pack of independent sequences, whose tokens from `scored_from` on are its targets."""
    begins = np.cumsum([0, *(len(tokens) for tokens in sequences)])
    predictors = [
        begin + np.arange(start - 1, len(tokens) - 1)
        for begin, start, tokens in zip(begins, scored_from, sequences, strict=False)
    ]
    targets = [tokens[start:] for tokens, start in zip(sequences, scored_from, strict=True)]
    return Pack(
        input_ids=_int64(sequences),
        positions=_int64([np.arange(len(tokens)) for tokens in sequences]),
        segments=tuple(Segment(begin=int(begin), end=int(end)) for begin, end in itertools.pairwise(begins)),
        predictors=_int64(predictors),
        targets=_int64(targets),
    )


class _Layout:
    """Layout of a pack: slices of the batch's tokens, and ranges of numbers, both as `slice`."""

    def __init__(self) -> None:
        self._width = 0
        self._segments: list[Segment] = []
        self._inputs: list[slice] = []
        self._positions: list[slice] = []
        self._predictors: list[slice] = []
        self._targets: list[slice] = []

    def add(self, rows: StepRows, unit: PackUnit) -> None:
        begins, prefix = rows.columns.token_ends, unit.prefix_length
        prefix_begin = self._width if prefix else 0
        prefix_end = prefix_begin + prefix
        if prefix:
            self._append(begins[unit.rows[0]], prefix)
        for row in unit.rows:
            shift = self._width - prefix - begins[row]
            own = input_length(rows.length(row), prefix)
            if own:
                self._append(
                    begins[row] + prefix, own, position=prefix, prefix_begin=prefix_begin, prefix_end=prefix_end
                )
            first = begins[row] + prefix if prefix else -1
            for turn in range(*rows.turn_ends[row : row + 2]):
                begin, end = rows.turn_begins[turn], rows.turn_begins[turn] + rows.turn_lengths[turn]
                self._targets.append(slice(begin, end))
                if begin == first:  # predicted by the last token of the prefix
                    self._predictors.append(slice(prefix_end - 1, prefix_end))
                    begin += 1
                self._predictors.append(slice(begin + shift - 1, end + shift - 1))

    def pack(self, tokens: Int32Array) -> Pack:
        numbers = np.arange(self._width)
        return Pack(
            input_ids=_int64(tokens[part] for part in self._inputs),
            positions=_int64(numbers[part] for part in self._positions),
            segments=tuple(self._segments),
            predictors=_int64(numbers[part] for part in self._predictors),
            targets=_int64(tokens[part] for part in self._targets),
        )

    def _append(self, begin: int, count: int, *, position: int = 0, prefix_begin: int = 0, prefix_end: int = 0) -> None:
        end = self._width + count
        self._segments.append(Segment(begin=self._width, end=end, prefix_begin=prefix_begin, prefix_end=prefix_end))
        self._inputs.append(slice(begin, begin + count))
        self._positions.append(slice(position, position + count))
        self._width = end


def _units_of_cluster(rows: StepRows, cluster: PromptCluster, max_tokens: int) -> Iterator[PackUnit]:
    prefix_length = cluster.prefix_length
    members: list[int] = []
    width = prefix_length
    for row in cluster.rows:
        own_tokens = input_length(rows.length(row), prefix_length)
        if members and (width + own_tokens > max_tokens or prefix_length == 0):
            yield _unit(rows, members, prefix_length)
            members, width = [], prefix_length
        members.append(row)
        width += own_tokens
    yield _unit(rows, members, prefix_length)


def _unit(rows: StepRows, members: Sequence[int], prefix_length: int) -> PackUnit:
    prefix = prefix_length if len(members) > 1 else 0
    own = [input_length(rows.length(row), prefix) for row in members]
    return PackUnit(
        rows=tuple(members),
        prefix_length=prefix,
        width=prefix + sum(own),
        pairs=(prefix * (prefix + 1) + sum(length * (length + 1) for length in own)) // 2 + prefix * sum(own),
        targets=sum(rows.trained_tokens(row) for row in members),
        padded_width=prefix + padded_tokens(own),
    )


def _int64(parts: Iterable[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *parts], dtype=np.int64))


def balanced_parts(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Divides items into `parts` parts of nearly equal cost; returns the indices of each part, in ascending order.

    Parts are in the order of their smallest index, empty ones last. Deterministic.
    Source: Karmarkar and Karp, "The differencing method of set partitioning", 1982: the two partial divisions whose
    parts differ most are joined, the most expensive part of each with the cheapest of the other.

    >>> balanced_parts([8.0, 7.0, 6.0, 5.0, 4.0], 2)
    [[0, 2], [1, 3, 4]]
    """
    if len(costs) <= parts:
        return [[index] for index in range(len(costs))] + [[] for _ in range(parts - len(costs))]
    heap = [_Division.of_item(index, cost, parts) for index, cost in enumerate(costs)]
    heapify(heap)
    while len(heap) > 1:
        heappush(heap, heappop(heap).joined(heappop(heap)))
    divided = [sorted(indices) for indices in heap[0].indices]
    return sorted(divided, key=lambda indices: indices[0] if indices else len(costs))


def imbalance(costs: Sequence[float]) -> float:
    """Returns the highest cost divided by the mean; 1 when there is no cost.

    >>> imbalance([3.0, 1.0])
    1.5
    """
    total = sum(costs)
    return max(costs) * len(costs) / total if total else 1.0


@dataclass(frozen=True, slots=True)
class _Division:
    """Division of some items; only differences between parts matter, so the cheapest part costs 0."""

    costs: tuple[float, ...]
    """Descending."""
    indices: tuple[tuple[int, ...], ...]

    @classmethod
    def of_item(cls, index: int, cost: float, parts: int) -> "_Division":
        empty: tuple[tuple[int, ...], ...] = ((),) * (parts - 1)
        return cls((cost, *(0.0,) * (parts - 1)), ((index,), *empty))

    def joined(self, other: "_Division") -> "_Division":
        summed = [
            (mine + theirs, (*indices, *more))
            for mine, theirs, indices, more in zip(
                self.costs, reversed(other.costs), self.indices, reversed(other.indices), strict=True
            )
        ]
        summed.sort(key=lambda part: (-part[0], part[1]))
        cheapest = summed[-1][0]
        return _Division(tuple(cost - cheapest for cost, _ in summed), tuple(indices for _, indices in summed))

    def __lt__(self, other: "_Division") -> bool:
        """Orders by the difference of most and least expensive part, largest first; ties by first index."""
        mine, theirs = self.costs[0] - self.costs[-1], other.costs[0] - other.costs[-1]
        return (-mine, self.indices) < (-theirs, other.indices)
