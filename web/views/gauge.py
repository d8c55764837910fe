"""Gauge of capacity over demand with its band, on a scale from zero to twice the demand."""

from dataclasses import dataclass

from astraflow.contract.reports import Report
from web.live.capacity import fleet_point

WIDTH = 200.0
"""Width of the scale; 100 units stand for the demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Positions on the scale; None while nothing is measured."""

    low: float | None
    high: float | None
    at: float | None


def gauge(report: Report) -> Gauge:
    """Returns the gauge of a report."""
    now = fleet_point(report)
    if not now.demand or now.low is None or now.high is None:
        return Gauge(low=None, high=None, at=None)
    return Gauge(low=_place(now.low / now.demand), high=_place(now.high / now.demand), at=_place(now.ratio))


def _place(ratio: float | None) -> float | None:
    return None if ratio is None else round(min(WIDTH, max(0.0, ratio * 100)), 1)
