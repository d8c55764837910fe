"""Differences of cumulative counters over sliding windows."""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from astraflow.scaling.signals import Floats

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Cumulative work of nodes at one time. Columns are [node]."""

    ids: tuple[str, ...]
    groups: Floats
    busy_s: Floats

    def since(self, then: "Work") -> tuple[Floats, Floats]:
        """Returns the groups and busy seconds added since `then`; nodes missing in `then` start at zero."""
        if then.ids == self.ids:
            return self.groups - then.groups, self.busy_s - then.busy_s
        rows = {node: row for row, node in enumerate(then.ids)}
        earlier_rows = np.array([rows.get(node, len(rows)) for node in self.ids], np.int64)
        return self.groups - np.append(then.groups, 0.0)[earlier_rows], self.busy_s - np.append(then.busy_s, 0.0)[
            earlier_rows
        ]


class WorkWindow:
    """Work of nodes over a window that is long enough to measure their rates."""

    def __init__(self, *, usual_s: float, widest_s: float, groups: float) -> None:
        """usual_s, widest_s: bounds of the window, in seconds. groups: finished groups that the window should hold."""
        self._usual_s = usual_s
        self._groups = groups
        self._snapshots: deque[tuple[float, Work]] = deque()
        self._widest_s = widest_s

    def add(self, at: float, work: Work) -> tuple[Floats, Floats]:
        """Adds a snapshot; returns groups and busy seconds of each node over the window."""
        self._snapshots.append((at, work))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= at - self._widest_s:
            self._snapshots.popleft()
        for since, then in reversed(self._snapshots):
            if at - since < self._usual_s:
                continue
            groups, busy_s = work.since(then)
            if groups.sum() >= self._groups:
                return groups, busy_s
        return work.since(self._snapshots[0][1])


class Window(Generic[T]):
    """Snapshots by time; `oldest` is the latest snapshot that is at least as old as the window.

    >>> window = Window[float](60)
    >>> for at in range(0, 200, 30):
    ...     window.add(at, at * 2.0)
    >>> window.oldest
    (120, 240.0)
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._snapshots: deque[tuple[float, T]] = deque()

    def add(self, at: float, value: T) -> None:
        """Adds a snapshot."""
        self._snapshots.append((at, value))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= at - self._seconds:
            self._snapshots.popleft()

    def clear(self) -> None:
        """Removes all snapshots."""
        self._snapshots.clear()

    @property
    def oldest(self) -> tuple[float, T]:
        """Time and value of the snapshot to compare with. Raises: IndexError without a snapshot."""
        return self._snapshots[0]
