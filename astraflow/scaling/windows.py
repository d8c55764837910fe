"""Differences of figures that only grow, over the last so many seconds."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Window(Generic[T]):
    """Snapshots by time; the one to compare with is the latest that is at least as old as the window.

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
        """Note where the figures are now."""
        self._snapshots.append((at, value))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= at - self._seconds:
            self._snapshots.popleft()

    def clear(self) -> None:
        """Begin anew."""
        self._snapshots.clear()

    @property
    def oldest(self) -> tuple[float, T]:
        """What to compare with. Raises: IndexError before anything was added."""
        return self._snapshots[0]
