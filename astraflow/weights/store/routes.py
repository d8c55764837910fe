"""Choice of the transfers from the version that a node has to the version it needs, in the fewest bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.contract.errors import UnknownVersion
from astraflow.contract.ids import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSegment:
    """Transfer that may be part of a route: a full snapshot of `target`, or the delta from `base` to it."""

    target: Version
    base: Version | None
    """Version that the delta starts from; None for a full snapshot."""
    size_bytes: int


def cheapest_route(
    segments: Iterable[RouteSegment], *, have: Version | None, want: Version
) -> tuple[RouteSegment, ...]:
    """Returns the segments from `have` (None: nothing) to `want` with the fewest bytes, then the fewest segments.

    Every segment leads from an older version to a newer one, so one pass in order of their targets is enough.
    Raises: UnknownVersion when there is no route.

    >>> full = RouteSegment(target=Version(5), base=None, size_bytes=90)
    >>> delta = RouteSegment(target=Version(5), base=Version(4), size_bytes=7)
    >>> [segment.size_bytes for segment in cheapest_route([full, delta], have=Version(4), want=Version(5))]
    [7]
    """
    routes: dict[Version | None, tuple[RouteSegment, ...]] = {None: ()}
    if have is not None:
        routes[have] = ()
    for segment in sorted(segments, key=lambda segment: segment.target):
        if segment.base not in routes or segment.target == have:
            continue
        route = (*routes[segment.base], segment)
        if segment.target not in routes or _cost(route) < _cost(routes[segment.target]):
            routes[segment.target] = route
    if want not in routes:
        raise UnknownVersion(
            f"cannot reach version {want} from {_describe_start(have)}: the store does not have it; request the newest "
            "version",
            code="weights.version_not_stored",
        )
    return routes[want]


def _cost(route: tuple[RouteSegment, ...]) -> tuple[int, int]:
    return sum(segment.size_bytes for segment in route), len(route)


def _describe_start(have: Version | None) -> str:
    return "nothing" if have is None else f"version {have}"
