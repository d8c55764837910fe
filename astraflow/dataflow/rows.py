"""State of a plug-in that is too large to be written with every commit: a row a prompt, of which the changed ones are.

The journal dumps small states (cursors, counters) as JSON each time it commits, up to hundreds of times a second. What
grows with the data set cannot be saved that way: 100,000 prompts would be megabytes a commit. So it is kept in rows.
A commit writes the rows that changed since the one before it, together with the changes and the small states of the
same moment: the cut stays exact, and its cost is that of the groups that came in, whatever the size of the data.
"""

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar, runtime_checkable

from astraflow.contract.values import Json

V = TypeVar("V", bound="int | float | str | list[Json]")


@runtime_checkable
class RowKeeper(Protocol):
    """A plug-in with rows beside its `state_dict`."""

    def changed_rows(self) -> dict[int, Json]:
        """The rows that changed since this was last asked, None for one that is gone; the journal has them now."""

    def all_rows(self) -> Mapping[int, Json]:
        """Every row as it is now, for a plug-in of the same kind that takes over."""

    def load_rows(self, rows: Mapping[int, Json]) -> None:
        """Go on with all the rows that were saved."""


class Rows(Generic[V]):
    """Values by the index of their prompt, and which of them changed.

    >>> rows = Rows[int]()
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
        """The value; None where there is none."""
        return self._values.get(index)

    def put(self, index: int, value: V) -> None:
        """Set a value."""
        self._values[index] = value
        self._changed.add(index)

    def drop(self, index: int) -> None:
        """Forget a value, if there is one."""
        if self._values.pop(index, None) is not None:
            self._changed.add(index)

    def changed(self) -> dict[int, Json]:
        """What changed since this was last asked, None for what is gone."""
        changed: dict[int, Json] = {index: self._values.get(index) for index in sorted(self._changed)}
        self._changed.clear()
        return changed

    def all(self) -> dict[int, Json]:
        """Every value."""
        return dict(self._values)

    def load(self, rows: Mapping[int, V]) -> None:
        """Go on with these."""
        self._values = dict(rows)
        self._changed.clear()
