"""Differences of cumulative counters over sliding windows."""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from astraflow.scaling.measurement.signals import Floats

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


class CountedWork:
    """Leaves out what a node does until it has finished as many tasks as it has slots.

    A node that starts has no task in work, so that it is busy for the time of a task before it finishes tasks at its
    rate. Counted, this would look like slow nodes in the first minutes of a run.
    """

    def __init__(self, *, longest_s: float) -> None:
        """longest_s: busy seconds after which all work of a node counts, however little it finished."""
        self._longest_s = longest_s
        self._uncounted: dict[str, tuple[float, float]] = {}
        """Finished groups and busy seconds that do not count, of nodes that have passed their first tasks."""

    def of(self, work: Work, slots: Floats) -> Work:
        """Returns the work that counts: zeros for nodes in their first tasks. slots: groups run at once. [node]"""
        uncounted: dict[str, tuple[float, float]] = {}
        first_groups, first_busy_s = work.groups.copy(), work.busy_s.copy()
        for row, node in enumerate(work.ids):
            all_so_far = (float(work.groups[row]), float(work.busy_s[row]))
            if node in self._uncounted:
                uncounted[node] = self._uncounted[node]
            elif all_so_far[0] >= slots[row]:
                uncounted[node] = all_so_far
            elif all_so_far[1] >= self._longest_s:
                uncounted[node] = (0.0, 0.0)
            first_groups[row], first_busy_s[row] = uncounted.get(node, all_so_far)
        self._uncounted = uncounted
        return Work(ids=work.ids, groups=work.groups - first_groups, busy_s=work.busy_s - first_busy_s)


class WorkWindow:
    """Work of nodes over a window that is long enough to measure their rates."""

    def __init__(self, *, usual_s: float, widest_s: float, groups: float) -> None:
        """usual_s, widest_s: bounds of the window, in seconds. groups: finished groups that the window should hold."""
        self._usual_s = usual_s
        self._groups = groups
        self._snapshots: deque[tuple[float, Work]] = deque()
        self._widest_s = widest_s

    def add(self, at: float, work: Work, *, per_group: float = 1.0) -> tuple[Floats, Floats]:
        """Adds a snapshot; returns groups and busy seconds of each node over the window.

        per_group: what `work` counts for a finished group; snapshots count the same, and its latest value applies.
        """
        self._snapshots.append((at, work))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= at - self._widest_s:
            self._snapshots.popleft()
        for since, then in reversed(self._snapshots):
            if at - since < self._usual_s:
                continue
            groups, busy_s = work.since(then)
            if groups.sum() >= self._groups * per_group:
                return groups / per_group, busy_s
        groups, busy_s = work.since(self._snapshots[0][1])
        return groups / per_group, busy_s


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
        self._snapshots.clear()

    @property
    def oldest(self) -> tuple[float, T]:
        """Time and value of the snapshot to compare with. Raises: IndexError without a snapshot."""
        return self._snapshots[0]
