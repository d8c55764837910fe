"""Groups that wait for a batch."""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.contract.ids import GroupId, Version
from astraflow.dataflow.admitting.routing import RoutedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """An admitted group. `arrival` orders groups by admission."""

    group: RoutedGroup
    arrival: int
    born: Version


class Buffer:
    """The admitted groups of one stream that are in no batch yet. Bounded by the issue gate."""

    def __init__(self) -> None:
        self._groups: dict[GroupId, Buffered] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: RoutedGroup) -> None:
        """Keep a group."""
        self._groups[group.id] = Buffered(group=group, arrival=self._arrivals, born=group.born)
        self._arrivals += 1

    def candidates(self) -> list[Buffered]:
        """All of them, by arrival."""
        return list(self._groups.values())

    def take(self, chosen: Iterable[Buffered]) -> list[RoutedGroup]:
        """Remove the chosen ones and return their groups in that order."""
        return [self._groups.pop(buffered.group.id).group for buffered in chosen]

    def evict_older_than(self, oldest: int) -> list[RoutedGroup]:
        """Remove and return the groups that were begun before version `oldest`."""
        stale = [buffered for buffered in self._groups.values() if buffered.born < oldest]
        return self.take(stale)
