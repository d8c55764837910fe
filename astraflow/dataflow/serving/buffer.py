"""Groups that wait for a batch."""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.contract.ids import GroupId, Version
from astraflow.dataflow.admitting.routing import RoutedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """A group that may be put into a batch. `arrival` orders groups by when they were put into their buffer."""

    group: RoutedGroup
    arrival: int
    born: Version
    deadline: Version
    """The trainer's last version at which it may still be in a batch."""


class Buffer:
    """Groups of one stream that are in no batch, and leave when they become too stale. Bounded by the issue gate."""

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._groups: dict[GroupId, Buffered] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: RoutedGroup) -> None:
        """Keep a group."""
        self._groups[group.id] = Buffered(
            group=group,
            arrival=self._arrivals,
            born=group.born,
            deadline=Version(group.born + self._max_staleness),
        )
        self._arrivals += 1

    def candidates(self) -> list[Buffered]:
        """All of them, by arrival."""
        return list(self._groups.values())

    def take(self, chosen: Iterable[Buffered]) -> list[RoutedGroup]:
        """Remove the chosen ones and return their groups in that order."""
        return [self._groups.pop(buffered.group.id).group for buffered in chosen]

    def evict_stale(self, version: Version) -> list[RoutedGroup]:
        """Remove and return the groups whose deadline was before `version`."""
        stale = [buffered for buffered in self._groups.values() if buffered.deadline < version]
        return self.take(stale)
