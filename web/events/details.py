"""Details of one event; for a decision of the sizer the formula with its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.report import Event
from web.components import formats
from web.components.calculation import Calculation, calculation
from web.history.points import Point
from web.state.annotations import event_text

CONSEQUENCE_DELAYS_S = (60.0, 300.0)
"""Delays after an event at which its consequences are shown, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDetails:
    """Event, ready for the drawer."""

    event: Event
    message: str
    calculation: Calculation | None
    """Calculation of the target; None for events that are no decision of the sizer."""
    effects: Sequence[tuple[str, str, str]]
    """State of the fleet at the event and after it: time, nodes, balance."""


def event_details(event: Event, recommendation: PoolRecommendation | None, points: Sequence[Point]) -> EventDetails:
    """Builds the view. recommendation: behind an event that moved or limited a target; None for other events."""
    is_decision = event.kind in (RecordKind.TARGET_MOVED, RecordKind.TARGET_LIMITED)
    return EventDetails(
        event=event,
        message=event_text(event),
        calculation=calculation(recommendation) if is_decision and recommendation is not None else None,
        effects=_effects(event, points),
    )


def _effects(event: Event, points: Sequence[Point]) -> list[tuple[str, str, str]]:
    times = [
        ("at the event", event.at),
        *((f"{formats.duration(after)} later", event.at + after) for after in CONSEQUENCE_DELAYS_S),
    ]
    return [
        (
            name,
            f"{formats.several(point.fleet.nodes, 'node')} ready, {point.fleet.pending} pending",
            f"capacity / demand {formats.ratio(point.fleet.ratio)}, the trainer waits {_wait_text(point)}",
        )
        for name, at in times
        if (point := _nearest(points, at)) is not None
    ]


def _nearest(points: Sequence[Point], at: float) -> Point | None:
    """Returns the point closest to `at` within three seconds; None without one."""
    near = [point for point in points if abs(point.at - at) <= 3.0]
    return min(near, key=lambda point: abs(point.at - at), default=None)


def _wait_text(point: Point) -> str:
    waits = [values.wait for values in point.policies.values() if values.wait is not None]
    return formats.percent(max(waits)) + " of a step" if waits else "for its first batch"
