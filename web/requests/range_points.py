"""Points of any time range: by the second from memory, older ones from the recorded history."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from astraflow.contract.ids import PolicyId
from web.components.layout import PageSelection
from web.database.db import Database
from web.history import series_queries
from web.history.capacity import FLEET_VALUES, FleetPoint
from web.history.points import VALUES, Point, PolicyPoint
from web.history.recorder import Recorder
from web.history.samples import FLEET_SUBJECT, policy_subject
from web.state.run_state import RunState

MAX_PAGE_POINTS = 450
"""Maximum points of a page; of more, only every second, third, ... is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySource:
    """Recent points of a run in memory, and its recorded history."""

    state: RunState
    recorder: Recorder
    database: Database


async def points_in_range(history: HistorySource, choice: PageSelection) -> list[Point]:
    """Points of the requested range and policy, oldest first."""
    recent = history.state.series.window(float("inf"))
    run_id, policy, span = history.recorder.run_id, choice.policy, choice.span
    if not recent or policy is None:
        return []
    first, end = recent[0], recent[-1].at if span.end is None else span.end
    start = end - span.duration_s
    older: list[Point] = []
    if start < first.at and first.sequence > 1 and run_id is not None:
        older = await history.database.read(
            lambda session: _recorded_points(session, run_id, policy, start, before=first)
        )
    return thinned([point for point in (*older, *recent) if start <= point.at <= end])


def thinned(points: Sequence[Point], *, at_most: int = MAX_PAGE_POINTS) -> list[Point]:
    """Reduces the points evenly; the newest is always included."""
    stride = max(1, -(-len(points) // at_most))
    return list(points[::-1][::stride][::-1])


def _recorded_points(session: Session, run_id: int, policy: PolicyId, start: float, *, before: Point) -> list[Point]:
    """Recorded points from `start` to `before`, with estimated sequences.

    Reads slightly beyond that point, because coarse rows are used only where they end before fine ones.
    """
    until = before.at + 1.0
    policy_rows = series_queries.rows(session, run_id, policy_subject(policy), VALUES, since=start, until=until)
    fleet_rows = dict(series_queries.rows(session, run_id, FLEET_SUBJECT, FLEET_VALUES, since=start, until=until))
    return [
        Point(
            sequence=before.sequence - max(1, round(before.at - at)),
            at=at,
            policies={policy: _policy_point(numbers)},
            lags={},
            fleet=_fleet_point(fleet_rows.get(at, {})),
        )
        for at, numbers in policy_rows
        if at < before.at
    ]


def _policy_point(numbers: dict[str, float | None]) -> PolicyPoint:
    lag = numbers["lag"]
    return PolicyPoint(
        reward=numbers["reward"],
        reward_average=numbers["reward_average"],
        reward_trained=numbers["reward_trained"],
        wait=numbers["wait"],
        produced=numbers["produced"] or 0.0,
        consumed=numbers["consumed"] or 0.0,
        buffered=round(numbers["buffered"] or 0.0),
        version=round(numbers["version"] or 0.0),
        steps=round(numbers["steps"] or 0.0),
        lag=None if lag is None else round(lag),
        **{name: numbers[name] for name in ("wait_s", "compute_s", "publish_s")},
    )


def _fleet_point(numbers: dict[str, float | None]) -> FleetPoint:
    target = numbers.get("target")
    counts = {name: round(numbers.get(name) or 0.0) for name in ("nodes", "pending")}
    measured = {name: numbers.get(name) for name in FLEET_VALUES if name not in ("nodes", "pending", "target")}
    return FleetPoint(**measured, **counts, target=None if target is None else round(target))  # type: ignore[arg-type] # fields by name
