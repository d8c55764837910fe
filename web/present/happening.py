"""One event with what was known then: for a decision of the sizer its formula, with the numbers filled in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.advice import ADVICE_INPUTS, Cap, PoolAdvice
from astraflow.contract.reports import Event
from web.history.points import Point
from web.present import formats
from web.present.sentences import bare_event

AFTER_S = (60.0, 300.0)
"""So long after an event its consequences are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number and what it says."""

    name: str
    value: str
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An event, ready for the drawer."""

    ordinal: int
    at: float
    title: str
    subject: str
    message: str
    formula: Sequence[str]
    """How the target follows, a line a step; empty for what the sizer did not decide."""
    figures: Sequence[Figure]
    """What it was decided from."""
    around: Sequence[Figure]
    """Before, then, and what came of it."""
    capped_by: str
    input_hash: str


def happening(event: Event, advice: PoolAdvice | None, points: Sequence[Point]) -> Happening:
    """The event. advice: what the sizer had in hand, for an event that moved a target or kept it from that."""
    is_decision = event.kind in ("target_moved", "target_capped") and advice is not None
    return Happening(
        ordinal=event.ordinal,
        at=event.at,
        title=event.kind.replace("_", " ").capitalize(),
        subject=event.subject,
        message=bare_event(event),
        formula=formula(advice) if is_decision and advice else (),
        figures=_figures(advice.inputs) if is_decision and advice else (),
        around=_around(event, points),
        capped_by=", ".join(_words(cap) for cap in advice.capped_by) if is_decision and advice else "",
        input_hash=advice.input_hash if is_decision and advice else "",
    )


def formula(advice: PoolAdvice) -> list[str]:
    """Demand, capacity, ratio and target with their numbers; what was not measured is left out.

    Source: docs/scaling.md, "The rule".
    """
    found = advice.inputs
    target = formats.several(advice.target, "node")
    lines = [f"target = {target}; {advice.present} present, {advice.pending} of them on the way"]
    if {"groups_per_step", "compute_s", "produced_per_usable", "demand_groups_per_s"} <= found.keys():
        lines.insert(
            0,
            f"demand = {formats.rate(found['groups_per_step'])} groups a step / {formats.duration(found['compute_s'])}"
            f" \N{MULTIPLICATION SIGN} {found['produced_per_usable']:.2f} produced for each usable"
            f" \N{MULTIPLICATION SIGN} {found.get('trim', 1.0):.2f} trim"
            f" = {formats.rate(found['demand_groups_per_s'])} groups/s",
        )
    if {"capacity_ordered_groups_per_s", "ratio", "band_low", "band_high"} <= found.keys():
        lines.insert(
            -1,
            f"ratio = {formats.rate(found['capacity_ordered_groups_per_s'])} groups/s ordered over the demand, "
            f"median of five ticks = {found['ratio']:.2f}; "
            f"the band is {found['band_low']:.2f} to {found['band_high']:.2f}",
        )
    return lines


def _figures(inputs: Mapping[str, float]) -> list[Figure]:
    return [
        Figure(name=name.replace("_", " "), value=formats.rate(inputs[name]), meaning=meaning)
        for name, meaning in ADVICE_INPUTS.items()
        if name in inputs
    ]


def _around(event: Event, points: Sequence[Point]) -> list[Figure]:
    moments = [("then", event.at), *((f"{formats.duration(after)} later", event.at + after) for after in AFTER_S)]
    return [
        Figure(
            name=name,
            value=f"{formats.several(point.fleet.nodes, 'node')} ready, {point.fleet.pending} on the way",
            meaning=f"capacity / demand {formats.ratio(point.fleet.ratio)}, the trainer waits {_waits(point)}",
        )
        for name, at in moments
        if (point := _nearest(points, at)) is not None
    ]


def _nearest(points: Sequence[Point], at: float) -> Point | None:
    """The point within three seconds of a moment."""
    near = [point for point in points if abs(point.at - at) <= 3.0]
    return min(near, key=lambda point: abs(point.at - at), default=None)


def _waits(point: Point) -> str:
    waits = [values.wait for values in point.policies.values() if values.wait is not None]
    return formats.percent(max(waits)) + " of a step" if waits else "for its first batch"


def _words(cap: Cap) -> str:
    return cap.value.replace("_", " ")
