"""Points over any stretch of time: those in memory by the second, and before them what is kept of the run."""

from collections.abc import Sequence

from sqlmodel import Session

from astraflow.contract.ids import PolicyId
from web.feed.capacity import FLEET_VALUES, FleetPoint
from web.history import reading
from web.history.points import VALUES, Point, PolicyPoint
from web.history.samples import FLEET_SUBJECT, policy_subject
from web.parts import Parts
from web.present.shell import Chosen

MOST_POINTS = 450
"""So many travel to a page; of more, every second, third, ... one."""


async def points_over(parts: Parts, choice: Chosen) -> list[Point]:
    """Points of the range and policy that are asked for, oldest first."""
    recent = parts.state.series.window(float("inf"))
    run_id, policy, span = parts.recorder.run_id, choice.policy, choice.span
    if not recent or policy is None:
        return []
    first, end = recent[0], recent[-1].at if span.end is None else span.end
    start = end - span.duration_s
    older: list[Point] = []
    if start < first.at and first.sequence > 1 and run_id is not None:
        older = await parts.database.look(lambda session: _kept(session, run_id, policy, start, before=first))
    return thinned([point for point in (*older, *recent) if start <= point.at <= end])


def thinned(points: Sequence[Point], *, at_most: int = MOST_POINTS) -> list[Point]:
    """Evenly fewer points; the newest is always there."""
    stride = max(1, -(-len(points) // at_most))
    return list(points[::-1][::stride][::-1])


def _kept(session: Session, run_id: int, policy: PolicyId, start: float, *, before: Point) -> list[Point]:
    """What is kept of the run from `start` until a point, with the sequences that its seconds had.

    It is read to just after that point: coarse rows fill in only as far as they end before fine ones.
    """
    until = before.at + 1.0
    of_policy = reading.rows(session, run_id, policy_subject(policy), VALUES, since=start, until=until)
    of_fleet = dict(reading.rows(session, run_id, FLEET_SUBJECT, FLEET_VALUES, since=start, until=until))
    return [
        Point(
            sequence=before.sequence - max(1, round(before.at - at)),
            at=at,
            policies={policy: _policy_point(numbers)},
            lags={},
            fleet=_fleet_point(of_fleet.get(at, {})),
        )
        for at, numbers in of_policy
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
        **{name: numbers[name] for name in ("loss", "kl", "length", "wait_s", "compute_s", "publish_s")},
    )


def _fleet_point(numbers: dict[str, float | None]) -> FleetPoint:
    target = numbers.get("target")
    counts = {name: round(numbers.get(name) or 0.0) for name in ("nodes", "pending")}
    measured = {name: numbers.get(name) for name in FLEET_VALUES if name not in ("nodes", "pending", "target")}
    return FleetPoint(**measured, **counts, target=None if target is None else round(target))  # type: ignore[arg-type] # fields by name
