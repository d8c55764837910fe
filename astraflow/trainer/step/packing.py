"""Packing of rows into flat forward passes without padding; tokens that rows of a group share are in a pack once."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.trainer.engines.base import PASS_TOKENS, Batching, Pack, Segment, padded_tokens
from astraflow.trainer.step.flops import ForwardCost
from astraflow.trainer.step.prefix_trees import Branch, Node, PrefixTree
from astraflow.trainer.step.rows import StepRows


@dataclass(frozen=True, slots=True, kw_only=True)
class PackUnit:
    """Rows that are computed together, in the depth-first order of a tree of their tokens (`PrefixTree`)."""

    rows: tuple[int, ...]
    """Indices of the rows in the batch."""
    shared: tuple[int, ...]
    """First tokens of each row that are computed with an earlier row of the unit; 0 for the first row."""
    width: int
    """Input tokens."""
    pairs: int
    """Pairs of a token and a token that it attends to."""
    targets: int
    """Trained tokens that differ in context or token."""
    padded_width: int = 0
    """Input tokens when rows of similar length that continue the same tokens are padded to the longest of them."""

    def cost(self, forward: ForwardCost) -> float:
        """Returns the FLOPs of a forward pass."""
        return forward.flops(tokens=self.width, pairs=self.pairs, targets=self.targets)


def input_length(length: int, shared: int) -> int:
    """Returns the number of input tokens of a row of `length` tokens after those that it shares.

    The last token is predicted but predicts nothing, so it is not part of the input, except where it makes the length a
    multiple of 16, for which attention on a CPU is faster than for one token less.

    >>> input_length(100, 0), input_length(128, 0), input_length(128, 28)
    (99, 128, 99)
    """
    own = length - shared
    return own if own % _ALIGNMENT == 0 else own - 1


_ALIGNMENT = 16


def prefix_trees(rows: StepRows, included: Iterable[int]) -> list[PrefixTree]:
    """Returns the tree of each group of the included rows, over all trajectories of all its episodes.

    Raises: InvalidInput when a trajectory begins with a model-written token, which no context predicts.
    """
    members: dict[str, dict[int, npt.NDArray[np.integer]]] = {}
    for row in included:
        members.setdefault(rows.rows.groups[row], {})[row] = rows.shared_keys(row)
    return [PrefixTree.of(tokens) for tokens in members.values()]


def distinct_tokens(trees: Iterable[PrefixTree]) -> int:
    """Returns the input tokens of the trees when all that rows share is computed once."""
    return sum(input_length(tree.lengths[row], shared) for tree in trees for row, shared in tree.order(lambda *_: True))


def pack_units(
    rows: StepRows, trees: Sequence[PrefixTree], *, max_tokens: int, batching: Batching = Batching.PACKED
) -> list[PackUnit]:
    """Divides the rows of trees into units of at most `max_tokens` tokens; a longer row is a unit of its own.

    Rows of a unit share as much as is worth it in this batching. A tree that is wider than a unit is cut where the
    fewest tokens are computed again.
    """
    is_kept = _kept_nodes(trees, batching)
    return [
        _unit(rows, part)
        for tree in trees
        for branches in _single_trees(tree.order(is_kept))
        for part in _parts_within(branches, tree.lengths, max_tokens)
    ]


_FEWEST_SAVED = 16
"""Tokens that a node of a tree must save in a flat pack, where it is a further call of attention."""


def _kept_nodes(trees: Sequence[PrefixTree], batching: Batching) -> Callable[[Node, int], bool]:
    """Returns what decides whether a node is worth its cost: in a tree it is a pass of its own, and one more for what
    continues it, both together with those of other nodes of the same position and length."""
    if batching is Batching.PACKED:
        return lambda node, parts: (parts - 1) * (node.end - node.begin) >= _FEWEST_SAVED
    saved: Counter[tuple[int, int]] = Counter()
    for tree in trees if batching is Batching.TREE else ():
        for node in tree.nodes:
            saved[node.begin, node.end] += (node.rows - 1) * (node.end - node.begin)
    return lambda node, _: saved[node.begin, node.end] > 2 * PASS_TOKENS


def _single_trees(branches: Iterable[Branch]) -> list[list[Branch]]:
    """Returns runs of branches that share tokens."""
    runs: list[list[Branch]] = []
    for branch in branches:
        if branch[1]:
            runs[-1].append(branch)
        else:
            runs.append([branch])
    return runs


def _parts_within(branches: Sequence[Branch], lengths: Mapping[int, int], max_tokens: int) -> Iterator[list[Branch]]:
    """Divides branches into runs of at most `max_tokens` input tokens, whose first rows are computed whole, so that the
    fewest tokens are computed again; among such divisions that with the fewest runs."""
    wholes = [input_length(lengths[row], 0) for row, _ in branches]
    ends = [*accumulate((input_length(lengths[row], shared) for row, shared in branches), initial=0)]
    if ends[-1] <= max_tokens:
        yield [*branches]
        return
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    """For the first rows: tokens computed again, runs, begin of the last run."""
    for end in range(1, len(branches) + 1):
        best.append(
            min(
                (best[begin][0] + branches[begin][1], best[begin][1] + 1, begin)
                for begin in _begins(wholes, ends, end, max_tokens)
            )
        )
    bounds = [len(branches)]
    while bounds[-1]:
        bounds.append(best[bounds[-1]][2])
    for end, begin in pairwise(bounds):
        yield [(branches[begin][0], 0), *branches[begin + 1 : end]]


def _begins(wholes: Sequence[int], ends: Sequence[int], end: int, max_tokens: int) -> Iterator[int]:
    """Returns the possible begins of a run of branches that ends before `end`."""
    for begin in range(end - 1, -1, -1):
        width = wholes[begin] + ends[end] - ends[begin + 1]
        if width > max_tokens and begin < end - 1:
            return
        yield begin


def split_unit(rows: StepRows, unit: PackUnit) -> list[PackUnit]:
    """Returns two units, of which the larger one is as small as it can be with the tokens that both compute."""
    branches = [*zip(unit.rows, unit.shared, strict=True)]
    ends = [*accumulate((input_length(rows.length(row), shared) for row, shared in branches), initial=0)]
    second = [
        input_length(rows.length(row), 0) + unit.width - end for row, end in zip(unit.rows, ends[1:], strict=True)
    ]
    cut = min(range(1, len(branches)), key=lambda cut: max(ends[cut], second[cut]))
    return [_unit(rows, branches[:cut]), _unit(rows, [(branches[cut][0], 0), *branches[cut + 1 :]])]


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
        segments=tuple(Segment(begin=int(begin), end=int(end)) for begin, end in pairwise(begins)),
        predictors=_int64(predictors),
        targets=_int64(targets),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Segment of a pack with tokens of a row."""

    first: int
    """Position of its first token in the row."""
    begin: int
    """Position of its first token in the pack."""


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
        pieces: list[_Piece] = []
        for row, shared in zip(unit.rows, unit.shared, strict=True):
            while pieces and pieces[-1].first >= shared:
                pieces.pop()
            own = input_length(rows.length(row), shared)
            if own:
                prefix_begin = pieces[-1].begin if pieces else 0
                prefix_end = prefix_begin + shared - (pieces[-1].first if pieces else 0)
                pieces.append(_Piece(shared, self._width))
                self._append(rows.columns.token_ends[row] + shared, own, shared, prefix_begin, prefix_end)
            self._add_targets(rows, row, pieces)

    def pack(self, tokens: npt.NDArray[np.integer]) -> Pack:
        numbers = np.arange(self._width)
        return Pack(
            input_ids=_int64(tokens[part] for part in self._inputs),
            positions=_int64(numbers[part] for part in self._positions),
            segments=tuple(self._segments),
            predictors=_int64(numbers[part] for part in self._predictors),
            targets=_int64(tokens[part] for part in self._targets),
        )

    def _append(self, begin: int, count: int, position: int, prefix_begin: int, prefix_end: int) -> None:
        end = self._width + count
        self._segments.append(Segment(begin=self._width, end=end, prefix_begin=prefix_begin, prefix_end=prefix_end))
        self._inputs.append(slice(begin, begin + count))
        self._positions.append(slice(position, position + count))
        self._width = end

    def _add_targets(self, rows: StepRows, row: int, pieces: Sequence[_Piece]) -> None:
        begin = rows.columns.token_ends[row]
        for turn in range(*rows.turn_ends[row : row + 2]):
            first, end = rows.turn_begins[turn], rows.turn_begins[turn] + rows.turn_lengths[turn]
            self._targets.append(slice(first, end))
            before, last = first - begin - 1, end - begin - 1  # positions in the row that predict the turn
            for number, piece in enumerate(pieces):
                low = max(before, piece.first)
                high = last if number + 1 == len(pieces) else min(last, pieces[number + 1].first)
                if low < high:
                    shift = piece.begin - piece.first
                    self._predictors.append(slice(low + shift, high + shift))


def _unit(rows: StepRows, branches: Sequence[Branch]) -> PackUnit:
    own = [input_length(rows.length(row), shared) for row, shared in branches]
    return PackUnit(
        rows=tuple(row for row, _ in branches),
        shared=tuple(shared for _, shared in branches),
        width=sum(own),
        pairs=sum(
            length * (length + 1) // 2 + length * shared for length, (_, shared) in zip(own, branches, strict=True)
        ),
        targets=sum(rows.trained_tokens(row, after=shared) for row, shared in branches),
        padded_width=_padded_width(branches, own),
    )


def _padded_width(branches: Sequence[Branch], own: Sequence[int]) -> int:
    """Returns the tokens of the passes of batching `tree`, which ends a row where others continue it. own: input tokens
    of each row after those that it shares."""
    path: list[int] = []
    ends = [shared for _, shared in branches]
    """Last position of each row at which it is continued."""
    parents: list[int] = []
    for number, (_, shared) in enumerate(branches):
        while path and branches[path[-1]][1] >= shared:
            path.pop()
        parents.append(path[-1] if path else -1)
        if path:
            ends[path[-1]] = max(ends[path[-1]], shared)
        path.append(number)
    leaves: dict[tuple[int, int], list[int]] = {}
    for number, (_, shared) in enumerate(branches):
        parent = number if ends[number] > shared else parents[number]
        leaves.setdefault((parent, ends[number]), []).append(max(0, shared + own[number] - ends[number]))
    inner = sum(end - shared for end, (_, shared) in zip(ends, branches, strict=True))
    return inner + sum(map(padded_tokens, leaves.values()))


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
