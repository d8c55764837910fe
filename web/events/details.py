"""Details of one event; for a decision of the sizer the formula with its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.fleet.recommendations import RECOMMENDATION_INPUTS, LimitInEffect, PoolRecommendation
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.report import Event
from web.components import formats
from web.components.calculation import Formula, calculation
from web.history.points import Point
from web.state.annotations import event_text

CONSEQUENCE_DELAYS_S = (60.0, 300.0)
"""Delays after an event at which its consequences are shown, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailFigure:
    """A number and its meaning."""

    name: str
    value: str
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDetails:
    """Event, ready for the drawer."""

    ordinal: int
    at: float
    title: str
    subject: str
    message: str
    formulas: Sequence[Formula]
    """Calculation of the target; empty for events that are no decision of the sizer."""
    figures: Sequence[DetailFigure]
    """Inputs of the decision."""
    context_figures: Sequence[DetailFigure]
    """State of the fleet at the event and after it."""
    limited_by: str
    input_hash: str


def event_details(event: Event, recommendation: PoolRecommendation | None, points: Sequence[Point]) -> EventDetails:
    """Builds the view. recommendation: behind an event that moved or limited a target; None for other events."""
    is_decision = event.kind in (RecordKind.TARGET_MOVED, RecordKind.TARGET_LIMITED) and recommendation is not None
    return EventDetails(
        ordinal=event.ordinal,
        at=event.at,
        title=event.kind.label,
        subject=event.subject,
        message=event_text(event),
        formulas=calculation(recommendation) if is_decision and recommendation else (),
        figures=_figures(recommendation.inputs) if is_decision and recommendation else (),
        context_figures=_context_figures(event, points),
        limited_by=", ".join(_limit_text(cap) for cap in recommendation.limited_by)
        if is_decision and recommendation
        else "",
        input_hash=recommendation.input_hash if is_decision and recommendation else "",
    )


def _figures(inputs: Mapping[str, float]) -> list[DetailFigure]:
    return [
        DetailFigure(name=name.replace("_", " "), value=formats.rate(inputs[name]), meaning=meaning)
        for name, meaning in RECOMMENDATION_INPUTS.items()
        if name in inputs
    ]


def _context_figures(event: Event, points: Sequence[Point]) -> list[DetailFigure]:
    times = [
        ("at the event", event.at),
        *((f"{formats.duration(after)} later", event.at + after) for after in CONSEQUENCE_DELAYS_S),
    ]
    return [
        DetailFigure(
            name=name,
            value=f"{formats.several(point.fleet.nodes, 'node')} ready, {point.fleet.pending} pending",
            meaning=f"capacity / demand {formats.ratio(point.fleet.ratio)}, the trainer waits {_wait_text(point)}",
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


def _limit_text(limit: LimitInEffect) -> str:
    return limit.value.replace("_", " ")
