"""Buffer of the groups that wait for a batch, and orders of groups in a batch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

from astraflow.contract.batches import Rows
from astraflow.contract.ids import BatchId, GroupId, Version
from astraflow.dataflow.admission.routing import RoutedGroup

GroupOrder: TypeAlias = Literal["deadline", "fifo", "freshest"]
"""`deadline`: oldest admissible version first; `fifo`: oldest arrival first; `freshest`: newest version first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedGroup:
    """A group that may be put into a batch. `arrival` orders groups by the time they were buffered."""

    group: RoutedGroup
    arrival: int
    oldest_version: Version
    deadline: Version
    """Last version of the trainer at which the group may be in a batch."""
    size: int = 1
    """Its part of a batch: 1 where groups are counted, its distinct tokens with `batch_tokens`."""


class Buffer:
    """Groups of one stream that are in no batch; stale groups are evicted. Bounded by the staleness gate."""

    def __init__(self, max_staleness: int, size_of: Callable[[RoutedGroup], int] = lambda _: 1) -> None:
        self._max_staleness = max_staleness
        self._size_of = size_of
        self._groups: dict[GroupId, BufferedGroup] = {}
        self._arrivals = 0
        self.size = 0
        """Sum of the sizes of the groups."""

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: RoutedGroup) -> None:
        self._groups[group.id] = buffered = BufferedGroup(
            group=group,
            arrival=self._arrivals,
            oldest_version=group.oldest_version,
            deadline=Version(group.oldest_version + self._max_staleness),
            size=self._size_of(group),
        )
        self._arrivals += 1
        self.size += buffered.size

    def candidates(self) -> list[BufferedGroup]:
        """Returns all groups by arrival."""
        return list(self._groups.values())

    def take(self, chosen: Iterable[BufferedGroup]) -> list[RoutedGroup]:
        """Removes the chosen groups and returns them in that order."""
        removed = [self._groups.pop(buffered.group.id) for buffered in chosen]
        self.size -= sum(buffered.size for buffered in removed)
        return [buffered.group for buffered in removed]

    def evict_stale(self, version: Version) -> list[RoutedGroup]:
        """Removes and returns the groups whose deadline was before `version`."""
        stale = [buffered for buffered in self._groups.values() if buffered.deadline < version]
        return self.take(stale)


def filled(ordered: Sequence[BufferedGroup], size: int) -> list[BufferedGroup]:
    """Returns the first groups that together reach the size; all where they do not."""
    sizes = accumulate((candidate.size for candidate in ordered), initial=0)
    return [candidate for candidate, before in zip(ordered, sizes, strict=False) if before < size]


def sort_key(candidate: BufferedGroup, order: GroupOrder) -> tuple[int, int]:
    """Returns the sort key of a candidate in that order, ties by arrival.

    Earliest deadline first is the optimal order for jobs with deadlines on one server (Liu and Layland, 1973); here the
    deadline is the last version a group may still be trained at.
    """
    match order:
        case "deadline":
            return (candidate.deadline, candidate.arrival)
        case "fifo":
            return (0, candidate.arrival)
        case "freshest":
            return (-candidate.oldest_version, candidate.arrival)


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
