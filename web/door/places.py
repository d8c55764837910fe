"""Where a role holds: everywhere, on one run, or on one pool of a run. Pure.

A run is meant by its name: a later run of the same name is the same place.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from web.door.roles import RANKS, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A run, or a pool of it; without a run, everywhere."""

    run: str = ""
    pool: str = ""

    def covers(self, other: "Place") -> bool:
        """Whether what holds here holds there.

        >>> Place(run="r").covers(Place(run="r", pool="eu")), Place(run="r", pool="eu").covers(Place(run="r"))
        (True, False)
        """
        return not self.run or (self.run == other.run and self.pool in ("", other.pool))

    @property
    def words(self) -> str:
        """As a sentence has it; empty for everywhere.

        >>> Place(run="r", pool="eu").words
        'on pool eu of run r'
        """
        if not self.run:
            return ""
        return f"on pool {self.pool} of run {self.run}" if self.pool else f"on run {self.run}"


EVERYWHERE = Place()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A role that somebody has at a place, besides the one that they have everywhere."""

    role: Role
    place: Place

    @property
    def words(self) -> str:
        """As a sentence has it."""
        return f"{self.role.value} {self.place.words}"


def role_there(base: Role, grants: Iterable[Grant], place: Place) -> Role:
    """The most of the role everywhere and of what is granted there.

    >>> eu = Grant(role=Role.OPERATOR, place=Place(run="r", pool="eu"))
    >>> role_there(Role.VIEWER, [eu], Place(run="r", pool="eu")), role_there(Role.VIEWER, [eu], Place(run="r"))
    (<Role.OPERATOR: 'operator'>, <Role.VIEWER: 'viewer'>)
    """
    return max([base, *(grant.role for grant in grants if grant.place.covers(place))], key=RANKS.index)


def lesser(one: Role, other: Role) -> Role:
    """What two roles both allow."""
    return min(one, other, key=RANKS.index)
