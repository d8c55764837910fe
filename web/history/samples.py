"""What of a report is kept: numbers of each policy and of the fleet every second, those of each node every ten."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import add
from typing import NamedTuple
from zlib import crc32

from astraflow.contract.ids import NodeId, PolicyId
from astraflow.contract.reports import NodeReport, Report
from web.feed.capacity import FLEET_VALUES
from web.history.levels import SECONDS, TENS, Level
from web.history.points import SERVING, VALUES, Point

FLEET_SUBJECT = "fleet"
"""The subject of numbers about all pools together."""

NODES_AT_ONCE = 1000
"""Of a larger fleet, the nodes take turns: of 10,000, each has ten seconds of every hundred kept."""

MOST_SHARES = 20_000
"""Names whose latest shares are kept; those that were measured first give way."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of a node's time: worked, found no task, stood still for new weights."""

    busy: float
    blocked: float
    refresh: float
    is_recent: bool = True
    """Of about the last ten seconds; else of all its time since it joined."""


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


class _Look(NamedTuple):
    """A node's counters of seconds when it last beat. A tuple: each second makes one of every node."""

    name: str
    beat_at: float
    busy_s: float
    blocked_s: float
    refresh_s: float

    def shares_since(self, before: "_Look") -> Shares | None:
        """How its time went since then; None when it did not beat or began anew."""
        passed_s = self.beat_at - before.beat_at
        grown = (self.busy_s - before.busy_s, self.blocked_s - before.blocked_s, self.refresh_s - before.refresh_s)
        if passed_s <= 0 or min(grown) < 0:
            return None
        busy, blocked, refresh = (min(1.0, seconds / passed_s) for seconds in grown)
        return Shares(busy=busy, blocked=blocked, refresh=refresh)


class NodeBuckets:
    """Means of the nodes' numbers over ten seconds, collected from one report after the other.

    Up to `NODES_AT_ONCE` nodes are all in each ten seconds; of more, each has its turn, so that what is written does
    not grow with the fleet.
    """

    def __init__(self) -> None:
        self._start: float | None = None
        self._sums: dict[str, list[float]] = {}
        """By name: the sums of episodes, tokens, lag and leased, and how many reports are in them."""
        self._now: dict[NodeId, _Look] = {}
        self._before: dict[NodeId, _Look] = {}
        """As they were when the bucket before ended."""
        self._taken: object = None
        """The nodes that were taken last: they may stay the same over some reports."""
        self.shares: dict[str, Shares] = {}
        """The latest that were measured, by name."""

    def add(self, report: Report) -> list[Sample]:
        """Take a report; returns the bucket that it ends, if it does."""
        start = report.at // TENS.width_s * TENS.width_s
        ended = self._ended() if self._start is not None and start > self._start else []
        self._start = start if self._start is None else max(start, self._start)
        if report.nodes is not self._taken:
            self._taken = report.nodes
            self._take_all(report)
        return ended

    def _take_all(self, report: Report) -> None:
        versions = {stream.policy: int(stream.version) for stream in report.streams}
        turns = -(-len(report.nodes) // NODES_AT_ONCE)
        turn = int((self._start or 0.0) // TENS.width_s) % turns if turns else 0
        for node in report.nodes:
            if node.state in SERVING and (turns < 2 or crc32(node.facts.name.encode()) % turns == turn):
                self._take(node, report.at, versions)

    def _take(self, node: NodeReport, at: float, versions: Mapping[PolicyId, int]) -> None:
        name = node.facts.name
        behind = [versions[policy] - int(had) for policy, had in node.versions.items() if policy in versions]
        numbers = (node.episodes_per_s, node.tokens_per_s, max([0, *behind]), node.leased, 1.0)
        found = self._sums.get(name)
        self._sums[name] = list(numbers) if found is None else list(map(add, found, numbers))
        look = _Look(
            name=name,
            beat_at=at - node.beat_age_s,
            busy_s=node.counters.get("busy_s", 0.0),
            blocked_s=node.counters.get("blocked_s", 0.0),
            refresh_s=node.counters.get("weight_pause_s", 0.0),
        )
        self._now[node.id] = look
        self._before.setdefault(node.id, look)

    def _ended(self) -> list[Sample]:
        start, sums, shares = self._start or 0.0, self._sums, {}
        for node, look in self._now.items():
            if (found := look.shares_since(self._before[node])) is not None:
                shares[look.name] = found
        self._sums, self._before, self._now = {}, self._now, {}
        self.shares |= shares
        while len(self.shares) > MOST_SHARES:
            del self.shares[next(iter(self.shares))]
        return [self._sample(start, name, total, shares.get(name)) for name, total in sums.items()]

    @staticmethod
    def _sample(start: float, name: str, total: list[float], shares: Shares | None) -> Sample:
        episodes, tokens, lag, leased = (number / total[-1] for number in total[:-1])
        spent = (shares.busy, shares.blocked) if shares is not None else (0.0, 0.0)
        values = dict(zip(NODE_VALUES, (episodes, tokens, *spent, lag, leased), strict=True))
        return Sample(level=TENS, at=start, subject=node_subject(name), values=values)
