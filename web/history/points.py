"""The history behind charts: one point a second for each policy, the newest fifteen minutes in memory."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports import NodeState, Report, StreamReport
from web.feed.capacity import FLEET_VALUES, FleetPoint, fleet_point
from web.feed.per_nodes import per_nodes

KEPT_POINTS = 900
AVERAGED_STEPS = 10
"""The reward line is the mean of the latest steps: as many as a run's stop rule looks at by default."""

SIGNIFICANT_DIGITS = 5

CHARTED_NODES = 8
"""So many nodes get a line of their own; of a larger pool, those farthest behind."""

SERVING = (NodeState.READY, NodeState.DRAINING)
"""States of nodes that answer prompts."""

VALUES = (
    "reward",
    "reward_average",
    "reward_trained",
    "wait",
    "produced",
    "consumed",
    "buffered",
    "version",
    "steps",
    "lag",
    "loss",
    "kl",
    "length",
    "wait_s",
    "compute_s",
    "publish_s",
)
"""Names of the numbers of a `PolicyPoint`, in the order in which they travel to the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPoint:
    """One policy at one second. None where nothing was measured yet."""

    reward: float | None
    """Mean reward of the rollouts that came in during the last step, before any filter: what the policy can do."""
    reward_average: float | None
    """Its mean over the last ten steps."""
    reward_trained: float | None
    """Mean reward of the last trained batch: filters leave out groups that teach nothing, so it stays in the middle."""
    wait: float | None
    """Fraction of a step for which the trainer waits."""
    produced: float
    """Admitted groups per second."""
    consumed: float
    """Trained groups per second."""
    buffered: int
    """Groups that wait for a batch."""
    version: int
    steps: int
    lag: int | None
    """Versions that the node farthest behind is behind."""
    loss: float | None = None
    """Of the last step, as the trainer says."""
    kl: float | None = None
    """Divergence from the reference policy, or where there is none, from the policy that wrote the rollouts."""
    length: float | None = None
    """Model-written tokens for each row of the last batch."""
    wait_s: float | None = None
    compute_s: float | None = None
    publish_s: float | None = None
    """Seconds over all steps so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """All policies, and the fleet, at one second."""

    sequence: int
    at: float
    """Unix seconds."""
    policies: Mapping[PolicyId, PolicyPoint]
    lags: Mapping[PolicyId, Mapping[str, int]]
    """Versions behind, by the name of each node that serves the policy; the farthest behind ones only."""
    fleet: FleetPoint = field(default_factory=FleetPoint)


class Series:
    """Points in order of their sequence, without doubles; the oldest leave."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=KEPT_POINTS)

    def __len__(self) -> int:
        return len(self._points)

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest point; 0 without any."""
        return self._points[-1].sequence if self._points else 0

    def add(self, report: Report) -> Point | None:
        """Append the report's point; None when it (or a newer one) is already here."""
        if report.sequence <= self.last_sequence:
            return None
        point = point_of(report)
        self._points.append(point)
        return point

    def after(self, sequence: int) -> list[Point]:
        """Points with a greater sequence, oldest first."""
        fresh: list[Point] = []
        for point in reversed(self._points):
            if point.sequence <= sequence:
                break
            fresh.append(point)
        return fresh[::-1]

    def window(self, duration_s: float) -> list[Point]:
        """Points of the last `duration_s` seconds before the newest, oldest first."""
        if not self._points:
            return []
        start = self._points[-1].at - duration_s
        return [point for point in self._points if point.at >= start]


def point_of(report: Report) -> Point:
    """What charts keep of a report. One of a minute knows no nodes, and so no lags."""
    lags = {stream.policy: lags_of(report, stream) for stream in report.streams}
    return Point(
        sequence=report.sequence,
        at=report.at,
        policies={stream.policy: _policy_point(stream, lags[stream.policy]) for stream in report.streams},
        lags={policy: _farthest(behind) for policy, behind in lags.items()},
        fleet=fleet_point(report),
    )


@per_nodes(lambda _, stream: (stream.policy, stream.version))
def lags_of(report: Report, stream: StreamReport) -> Mapping[str, int]:
    """How many versions each node that serves the policy is behind its trainer, by name, for nodes that are there.

    A name stays the same when a node restarts; two nodes of one name are told apart by their ids.
    """
    lags: dict[str, int] = {}
    for node in report.nodes:
        if node.state in SERVING and stream.policy in node.versions:
            name = f"{node.facts.name} ({node.id})" if node.facts.name in lags else node.facts.name
            lags[name] = max(0, stream.version - node.versions[stream.policy])
    return lags


def point_json(point: Point) -> list[Any]:
    """A point as the charts take it: `[sequence, at, {policy: {"v": values, "l": lags}}, fleet values]`."""
    policies = {
        policy: {"v": [rounded(getattr(values, name)) for name in VALUES], "l": dict(point.lags.get(policy, {}))}
        for policy, values in point.policies.items()
    }
    fleet = [rounded(getattr(point.fleet, name)) for name in FLEET_VALUES]
    return [point.sequence, round(point.at, 2), policies, fleet]


def rounded(value: float | None) -> float | None:
    """A number with the digits that anybody could see; whole ones without a point.

    >>> rounded(0.1234567), rounded(32.0), rounded(None)
    (0.12346, 32, None)
    """
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(short) if short.is_integer() else short


def finite(value: float) -> float | None:
    """The value, or None for NaN and infinities: they mean that nothing was measured."""
    return value if math.isfinite(value) else None


def _policy_point(stream: StreamReport, lags: Mapping[str, int]) -> PolicyPoint:
    by_step = [reward for reward in stream.rewards if math.isfinite(reward)][-AVERAGED_STEPS:]
    if not by_step and (stream.admitted or stream.produced_per_s > 0) and math.isfinite(stream.reward_produced):
        by_step = [stream.reward_produced]
    return PolicyPoint(
        reward=by_step[-1] if by_step else None,
        reward_average=sum(by_step) / len(by_step) if by_step else None,
        reward_trained=finite(stream.reward_mean) if stream.steps > 0 else None,
        wait=finite(stream.wait_fraction) if stream.steps > 0 else None,
        produced=finite(stream.produced_per_s) or 0.0,
        consumed=finite(stream.consumed_per_s) or 0.0,
        buffered=stream.buffered,
        version=int(stream.version),
        steps=stream.steps,
        lag=max(lags.values(), default=None),
        **_training(stream),
    )


def _training(stream: StreamReport) -> dict[str, float | None]:
    """What the trainer says of its steps; nothing before the first."""
    if not stream.steps:
        return {}
    told = (stream.metrics.get(name) for name in ("kl_reference", "kl_behaviour"))
    kl = next((value for value in told if value is not None), None)
    loss = stream.metrics.get("loss")
    return {
        "loss": None if loss is None else finite(loss),
        "kl": None if kl is None else finite(kl),
        "length": finite(stream.tokens_mean),
        "wait_s": finite(stream.wait_s),
        "compute_s": finite(stream.compute_s),
        "publish_s": finite(stream.publish_s),
    }


def _farthest(lags: Mapping[str, int]) -> dict[str, int]:
    ranked = sorted(lags.items(), key=lambda item: -item[1])[:CHARTED_NODES]
    return dict(sorted(ranked))
