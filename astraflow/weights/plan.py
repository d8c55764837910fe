"""Which transfers lead from the version a node has to the one it wants, in the fewest bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.contract.errors import UnknownVersion
from astraflow.contract.ids import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A transfer that could be part of a way: a full snapshot of `target`, or the delta from `base` to it."""

    target: Version
    base: Version | None
    """None for a full snapshot."""
    size_bytes: int


def cheapest_way(legs: Iterable[Leg], *, have: Version | None, want: Version) -> tuple[Leg, ...]:
    """The legs from `have` (None: nothing) to `want` with the fewest bytes; of equal ways the one with fewer legs.

    Every leg leads from an older version to a newer one, so one pass in order of their targets finds it.
    Raises: UnknownVersion when no way leads there.

    >>> full = Leg(target=Version(5), base=None, size_bytes=90)
    >>> delta = Leg(target=Version(5), base=Version(4), size_bytes=7)
    >>> [leg.size_bytes for leg in cheapest_way([full, delta], have=Version(4), want=Version(5))]
    [7]
    """
    ways: dict[Version | None, tuple[Leg, ...]] = {None: ()}
    if have is not None:
        ways[have] = ()
    for leg in sorted(legs, key=lambda leg: leg.target):
        if leg.base not in ways or leg.target == have:
            continue
        way = (*ways[leg.base], leg)
        if leg.target not in ways or _cost(way) < _cost(ways[leg.target]):
            ways[leg.target] = way
    if want not in ways:
        raise UnknownVersion(f"no way leads to version {want} from {_named(have)}: it is not kept")
    return ways[want]


def _cost(way: tuple[Leg, ...]) -> tuple[int, int]:
    return sum(leg.size_bytes for leg in way), len(way)


def _named(have: Version | None) -> str:
    return "nothing" if have is None else f"version {have}"
