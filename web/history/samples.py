"""What of a report is kept: numbers of each policy and of the fleet every second, those of each node every ten."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astraflow.contract.ids import NodeId, PolicyId
from astraflow.contract.reports import NodeReport, Report
from web.capacity import FLEET_VALUES
from web.history.levels import SECONDS, TENS, Level
from web.points import SERVING, VALUES, Point

FLEET_SUBJECT = "fleet"
"""The subject of numbers about all pools together."""

NODE_VALUES = ("episodes", "tokens", "busy", "blocked", "lag", "leased")
"""Of a node: episodes and tokens per second, shares of its slots that worked or found no task, versions behind its
farthest trainer, tasks it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The numbers of one subject at one time. None for what was not measured."""

    level: Level
    at: float
    subject: str
    values: Mapping[str, float | None]


def policy_subject(policy: str) -> str:
    """The subject of a policy's numbers."""
    return f"policy/{policy}"


def node_subject(name: str) -> str:
    """The subject of a node's numbers: by its name, which outlives restarts."""
    return f"node/{name}"


def point_samples(point: Point) -> Iterator[Sample]:
    """What is kept of one second."""
    for policy, numbers in point.policies.items():
        values = {name: getattr(numbers, name) for name in VALUES}
        yield Sample(level=SECONDS, at=point.at, subject=policy_subject(policy), values=values)
    fleet = {name: getattr(point.fleet, name) for name in FLEET_VALUES}
    yield Sample(level=SECONDS, at=point.at, subject=FLEET_SUBJECT, values=fleet)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A node's counters of seconds when it last beat."""

    name: str
    beat_at: float
    busy_s: float
    blocked_s: float

    def shares_since(self, before: "_Look") -> tuple[float, float]:
        """How much of the time since then it worked and wanted; nothing when it did not beat or began anew."""
        passed_s = self.beat_at - before.beat_at
        grown = (self.busy_s - before.busy_s, self.blocked_s - before.blocked_s)
        if passed_s <= 0 or min(grown) < 0:
            return 0.0, 0.0
        return min(1.0, grown[0] / passed_s), min(1.0, grown[1] / passed_s)


class NodeBuckets:
    """Means of the nodes' numbers over ten seconds, collected from one report after the other."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._sums: dict[str, NDArray[np.float64]] = {}
        """By name: the sums of episodes, tokens, lag and leased, and how many reports are in them."""
        self._now: dict[NodeId, _Look] = {}
        self._before: dict[NodeId, _Look] = {}
        """As they were when the bucket before ended."""

    def add(self, report: Report) -> list[Sample]:
        """Take a report; returns the bucket that it ends, if it does."""
        start = report.at // TENS.width_s * TENS.width_s
        ended = self._ended() if self._start is not None and start > self._start else []
        self._start = start if self._start is None else max(start, self._start)
        versions = {stream.policy: int(stream.version) for stream in report.streams}
        for node in report.nodes:
            if node.state in SERVING:
                self._take(node, report.at, versions)
        return ended

    def _take(self, node: NodeReport, at: float, versions: Mapping[PolicyId, int]) -> None:
        behind = [versions[policy] - int(had) for policy, had in node.versions.items() if policy in versions]
        numbers = np.array([node.episodes_per_s, node.tokens_per_s, max([0, *behind]), node.leased, 1.0])
        found = self._sums.get(node.facts.name)
        self._sums[node.facts.name] = numbers if found is None else found + numbers
        look = _Look(
            name=node.facts.name,
            beat_at=at - node.beat_age_s,
            busy_s=node.counters.get("busy_s", 0.0),
            blocked_s=node.counters.get("blocked_s", 0.0),
        )
        self._now[node.id] = look
        self._before.setdefault(node.id, look)

    def _ended(self) -> list[Sample]:
        start, sums, shares = self._start or 0.0, self._sums, {}
        for node, look in self._now.items():
            shares[look.name] = look.shares_since(self._before[node])
        self._sums, self._before, self._now = {}, self._now, {}
        return [self._sample(start, name, total, shares.get(name, (0.0, 0.0))) for name, total in sums.items()]

    @staticmethod
    def _sample(start: float, name: str, total: NDArray[np.float64], shares: tuple[float, float]) -> Sample:
        episodes, tokens, lag, leased = (total[:-1] / total[-1]).tolist()
        values = dict(zip(NODE_VALUES, (episodes, tokens, *shares, lag, leased), strict=True))
        return Sample(level=TENS, at=start, subject=node_subject(name), values=values)
