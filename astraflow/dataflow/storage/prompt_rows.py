"""Plugin state that is too large to be written with every commit: one row per prompt, of which commits write changes.

The journal dumps small states (cursors, counters) as JSON with each commit, up to hundreds of times a second. State
that grows with the dataset cannot be saved that way: 100,000 prompts would be megabytes per commit. So it is stored in
rows. A commit writes the rows that changed since the last one, together with the changes and the small states of the
same time: the cut stays exact, and its cost is proportional to the groups that arrived, whatever the size of the data.
"""

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar, runtime_checkable

from astraflow.contract.values import Json

V = TypeVar("V", bound="int | float | str | list[Json]")


@runtime_checkable
class RowProvider(Protocol):
    """A plugin with rows in addition to its `state_dict`."""

    def changed_rows(self) -> dict[int, Json]:
        """Returns the rows that changed since the last call, None for a deleted one."""

    def all_rows(self) -> Mapping[int, Json]:
        """Returns every row, for a plugin of the same kind that takes over."""

    def load_rows(self, rows: Mapping[int, Json]) -> None:
        """Restores all saved rows."""


class PromptRows(Generic[V]):
    """Values by prompt index, with a record of the changed values.

    >>> rows = PromptRows[int]()
    >>> rows.put(7, 1)
    >>> rows.put(7, 2)
    >>> rows.changed(), rows.changed()
    ({7: 2}, {})
    """

    def __init__(self) -> None:
        self._values: dict[int, V] = {}
        self._changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, index: int) -> V | None:
        """Returns the value, None if there is none."""
        return self._values.get(index)

    def put(self, index: int, value: V) -> None:
        self._values[index] = value
        self._changed.add(index)

    def drop(self, index: int) -> None:
        """Deletes a value, if there is one."""
        if self._values.pop(index, None) is not None:
            self._changed.add(index)

    def changed(self) -> dict[int, Json]:
        """Returns the values that changed since the last call, None for deleted values."""
        changed: dict[int, Json] = {index: self._values.get(index) for index in sorted(self._changed)}
        self._changed.clear()
        return changed

    def all(self) -> dict[int, Json]:
        return dict(self._values)

    def load(self, rows: Mapping[int, V]) -> None:
        """Restores all values."""
        self._values = dict(rows)
        self._changed.clear()
