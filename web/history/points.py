"""History of charts: one point per second and policy; the newest fifteen minutes in memory."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from operator import itemgetter
from typing import Any

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.report import NodeState, Report, StreamReport
from web.history.capacity import FLEET_VALUES, FleetPoint, fleet_point, node_cache

MAX_POINTS = 900
AVERAGED_STEPS = 10
"""Steps of the moving average of the reward: the default window of a run's stop rule."""

SIGNIFICANT_DIGITS = 5

MAX_CHARTED_NODES = 8
"""Nodes with a line of their own; in a larger pool, those farthest behind."""

SERVING_STATES = (NodeState.READY, NodeState.DRAINING)
"""States of nodes that serve prompts."""

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
    "wait_s",
    "compute_s",
    "publish_s",
)
"""Values of a `PolicyPoint`, in the order of the page's protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPoint:
    """Values of one policy at one second. None if nothing was measured yet."""

    reward: float | None
    """Mean reward of the rollouts received during the last step, before filters; before the first step that of the
    latest seconds."""
    reward_average: float | None
    """Mean over the last ten steps; None before the first."""
    reward_trained: float | None
    """Mean reward of the last trained batch: filters drop groups without a learning signal, so it stays in the
    middle."""
    wait: float | None
    """Fraction of a step for which the trainer waits."""
    produced: float
    """Admitted groups per second."""
    consumed: float
    """Trained groups per second."""
    buffered: int
    """Groups waiting for a batch. Count."""
    version: int
    steps: int
    lag: int | None
    """Versions by which the slowest node is behind."""
    wait_s: float | None = None
    compute_s: float | None = None
    publish_s: float | None = None
    """Seconds over all steps so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of all policies and the fleet at one second."""

    sequence: int
    at: float
    """Unix seconds."""
    policies: Mapping[PolicyId, PolicyPoint]
    lags: Mapping[PolicyId, Mapping[str, int]]
    """Versions behind, by policy and node name; only the nodes farthest behind."""
    fleet: FleetPoint = field(default_factory=FleetPoint)


class Series:
    """Points ordered by sequence, without duplicates; the oldest are dropped."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)

    def __len__(self) -> int:
        return len(self._points)

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest point; 0 without any."""
        return self._points[-1].sequence if self._points else 0

    def add(self, report: Report) -> Point | None:
        """Appends the report's point; None if it or a newer one exists."""
        if report.sequence <= self.last_sequence:
            return None
        point = point_of(report)
        self._points.append(point)
        return point

    def after(self, sequence: int) -> list[Point]:
        """Points with a greater sequence, oldest first."""
        newer: list[Point] = []
        for point in reversed(self._points):
            if point.sequence <= sequence:
                break
            newer.append(point)
        return newer[::-1]

    def window(self, duration_s: float) -> list[Point]:
        """Points of the last `duration_s` seconds before the newest, oldest first."""
        if not self._points:
            return []
        start = self._points[-1].at - duration_s
        return [point for point in self._points if point.at >= start]


def point_of(report: Report) -> Point:
    """Point of a report. A report by the minute contains no nodes and hence no lags."""
    lags = {stream.policy: _lags(report, stream) for stream in report.streams}
    return Point(
        sequence=report.sequence,
        at=report.at,
        policies={stream.policy: _policy_point(stream, lags[stream.policy]) for stream in report.streams},
        lags=lags,
        fleet=fleet_point(report),
    )


def _lags(report: Report, stream: StreamReport) -> dict[str, int]:
    """Versions by which nodes are behind the trainer, by node name; only the nodes farthest behind."""
    versions = _oldest_versions(report, stream.policy)
    return {name: max(0, stream.version - version) for name, version in versions.items()}


@node_cache(lambda _, policy: policy)
def _oldest_versions(report: Report, policy: PolicyId) -> Mapping[str, Version]:
    """Versions of the serving nodes with the oldest ones, by node name.

    A name survives a restart of the node; two nodes with the same name are distinguished by their ids.
    """
    versions: dict[str, Version] = {}
    for node in report.nodes:
        if node.state in SERVING_STATES and policy in node.versions:
            name = f"{node.facts.name} ({node.id})" if node.facts.name in versions else node.facts.name
            versions[name] = node.versions[policy]
    return dict(sorted(nsmallest(MAX_CHARTED_NODES, versions.items(), key=itemgetter(1))))


def point_json(point: Point) -> list[Any]:
    """Point in the format of the charts: `[sequence, at, {policy: {"v": values, "l": lags}}, fleet values]`."""
    policies = {
        policy: {"v": [rounded(getattr(values, name)) for name in VALUES], "l": dict(point.lags.get(policy, {}))}
        for policy, values in point.policies.items()
    }
    fleet = [rounded(getattr(point.fleet, name)) for name in FLEET_VALUES]
    return [point.sequence, round(point.at, 2), policies, fleet]


def rounded(value: float | None) -> float | None:
    """Rounds to significant digits; whole numbers become integers.

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
    """Value, or None for NaN and infinities, which mean that nothing was measured."""
    return value if math.isfinite(value) else None


def _policy_point(stream: StreamReport, lags: Mapping[str, int]) -> PolicyPoint:
    by_step = [reward for reward in stream.training.rewards if math.isfinite(reward)][-AVERAGED_STEPS:]
    has_rollouts = stream.groups.admitted > 0 or stream.produced_per_s > 0
    return PolicyPoint(
        reward=by_step[-1] if by_step else finite(stream.reward_produced) if has_rollouts else None,
        reward_average=sum(by_step) / len(by_step) if by_step else None,
        reward_trained=finite(stream.training.reward_mean) if stream.training.steps > 0 else None,
        wait=finite(stream.training.wait_fraction) if stream.training.steps > 0 else None,
        produced=finite(stream.produced_per_s) or 0.0,
        consumed=finite(stream.consumed_per_s) or 0.0,
        buffered=stream.groups.buffered,
        version=int(stream.version),
        steps=stream.training.steps,
        lag=max(lags.values(), default=None),
        wait_s=finite(stream.training.wait_s) if stream.training.steps else None,
        compute_s=finite(stream.training.compute_s) if stream.training.steps else None,
        publish_s=finite(stream.training.publish_s) if stream.training.steps else None,
    )
