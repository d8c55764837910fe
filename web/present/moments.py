"""Pins of a run as a list: decisions of one moment and ground are one line, and so are the losses of one moment."""

from collections.abc import Iterable
from dataclasses import dataclass

from web.feed.pins import Pin, PinKind
from web.present.events import SAME_MOMENT_S
from web.present.sentences import grounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line."""

    at: float
    kind: PinKind
    parts: tuple[tuple[int, str], ...]
    """Ordinal of each event, and what happened."""
    ground: str
    """Why, for all of them; empty where none is said."""
    more: int
    """So many more of its kind at that moment, which are not told one by one."""


def moments_of(pins: Iterable[Pin]) -> tuple[Moment, ...]:
    """Lines in the order of the pins."""
    groups: list[list[Pin]] = []
    for pin in pins:
        if groups and _is_alike(groups[-1][0], pin):
            groups[-1].append(pin)
        else:
            groups.append([pin])
    return tuple(_moment(group) for group in groups)


def _moment(pins: list[Pin]) -> Moment:
    first = pins[0]
    told = pins if first.kind is PinKind.DECISION else pins[:1]
    return Moment(
        at=first.at,
        kind=first.kind,
        parts=tuple((pin.ordinal, grounded(pin.text)[0]) for pin in told),
        ground=grounded(first.text)[1],
        more=len(pins) - len(told),
    )


def _is_alike(first: Pin, other: Pin) -> bool:
    if first.kind is not other.kind or abs(first.at - other.at) > SAME_MOMENT_S:
        return False
    ground = grounded(first.text)[1]
    return first.kind is PinKind.LOSS or (bool(ground) and ground == grounded(other.text)[1])
