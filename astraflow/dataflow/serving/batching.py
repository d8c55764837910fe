"""A batch on its way from a stream to its trainer and back."""

from dataclasses import dataclass

from astraflow.contract.batches import Row
from astraflow.contract.ids import BatchId, Version
from astraflow.dataflow.admitting.routing import RoutedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBatch:
    """A batch that belongs to the trainer until it is acknowledged."""

    id: BatchId
    version: Version
    groups: tuple[RoutedGroup, ...]
    """Fresh ones."""
    replayed: tuple[RoutedGroup, ...] = ()
    """Groups that were trained before."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """Of all its groups."""
        return tuple(row for group in (*self.groups, *self.replayed) for row in group.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """What an acknowledged batch was made of, and what becomes of it."""

    trained: tuple[RoutedGroup, ...]
    """Its fresh groups."""
    kept: tuple[RoutedGroup, ...]
    """Those of all its groups that may be trained again."""
    forgotten: tuple[RoutedGroup, ...]
    """The others."""
