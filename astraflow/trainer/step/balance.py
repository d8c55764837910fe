"""Balanced division of work, by the largest differencing method."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


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
