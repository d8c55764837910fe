"""What stands as a pin over the chart of the fleet: decisions about its size, and losses."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.reports import Event, Report
from web.present.sentences import bare_event

KEPT_PINS = 400


class PinKind(Enum):
    """How a pin looks."""

    DECISION = "decision"
    LOSS = "loss"


KINDS = {
    "target_moved": PinKind.DECISION,
    "flow_paused": PinKind.DECISION,
    "flow_resumed": PinKind.DECISION,
    "node_lost": PinKind.LOSS,
    "trainer_stalled": PinKind.LOSS,
}
"""Events that are pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One event on the chart."""

    ordinal: int
    at: float
    kind: PinKind
    text: str


def pin_of(event: Event) -> Pin | None:
    """The event's pin; None for one that has none."""
    kind = KINDS.get(event.kind)
    if kind is None:
        return None
    words = event.kind.replace("_", " ").capitalize()
    return Pin(ordinal=event.ordinal, at=event.at, kind=kind, text=f"{words}: {event.subject}. {bare_event(event)}")


class Pinned:
    """Pinned events of the run, once each, and the advice behind those that moved a target."""

    def __init__(self) -> None:
        self._pins: dict[int, Pin] = {}
        self._advice: dict[tuple[str, float], PoolAdvice] = {}

    @property
    def pins(self) -> list[Pin]:
        """Oldest first."""
        return [self._pins[ordinal] for ordinal in sorted(self._pins)]

    def see(self, report: Report) -> None:
        """Take what a report tells."""
        self.add(report.events)
        for advised in report.advice:
            self._advice.setdefault((advised.pool, advised.at), advised)
        while len(self._advice) > KEPT_PINS:
            del self._advice[next(iter(self._advice))]

    def add(self, events: Iterable[Event]) -> None:
        """Take events, from a report or from further back."""
        found = (pin_of(event) for event in events)
        self._pins |= {pin.ordinal: pin for pin in found if pin is not None and pin.ordinal not in self._pins}
        for ordinal in sorted(self._pins)[:-KEPT_PINS]:
            del self._pins[ordinal]

    def advice_of(self, event: Event) -> PoolAdvice | None:
        """What the sizer had in hand when it moved a target: its tick at, or last before, the event."""
        ticks = [at for pool, at in self._advice if pool == event.subject and at <= event.at + 1.0]
        return self._advice[event.subject, max(ticks)] if ticks else None


def pin_json(pin: Pin) -> list[object]:
    """A pin as the chart takes it."""
    return [pin.ordinal, round(pin.at, 2), pin.kind.value, pin.text]
