"""Batches, from serving to acknowledgement."""

from dataclasses import dataclass

from astraflow.contract.batches import Rows
from astraflow.contract.ids import BatchId, Version
from astraflow.dataflow.admission.routing import RoutedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBatch:
    """A batch held by the trainer until it is acknowledged."""

    id: BatchId
    version: Version
    fresh_groups: tuple[RoutedGroup, ...]
    """Groups that were not trained before."""
    replayed: tuple[RoutedGroup, ...] = ()
    """Groups that were trained before."""

    @property
    def rows(self) -> Rows:
        """Rows of all groups."""
        return Rows.joined([Rows.of(group.rows) for group in (*self.fresh_groups, *self.replayed)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedBatch:
    """Groups of an acknowledged batch, by what happens to them."""

    trained: tuple[RoutedGroup, ...]
    """Fresh groups of the batch."""
    replayable: tuple[RoutedGroup, ...]
    """Groups of the batch that may be trained again."""
    released: tuple[RoutedGroup, ...]
    """The other groups of the batch."""
