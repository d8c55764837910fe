"""Samples recorded from reports: policies and the fleet every second, nodes every ten seconds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from sqlmodel import SQLModel

from astraflow.contract.ids import NodeId, PolicyId
from astraflow.contract.node_metrics import SYSTEM_GAUGES
from astraflow.contract.reports.report import NodeReport, Report
from web.database.tables import SeriesFiveMinutes, SeriesSecond, SeriesTenSeconds
from web.history.capacity import FLEET_VALUES
from web.history.points import SERVING_STATES, VALUES, Point

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Level of detail. A row of a coarse level covers `width_s` seconds from its time on."""

    width_s: int
    retention_s: float
    """Retention before the newest report of the run, seconds: an ended run keeps its history."""
    node_retention_s: float
    """Retention of the history of single nodes, of which there may be thousands, seconds."""
    table: type[SQLModel]


SECOND_LEVEL = Level(width_s=1, retention_s=6 * HOUR_S, node_retention_s=0.0, table=SeriesSecond)
TEN_SECOND_LEVEL = Level(
    width_s=10,
    retention_s=2 * DAY_S,
    node_retention_s=2 * HOUR_S,
    table=SeriesTenSeconds,
)
FIVE_MINUTE_LEVEL = Level(
    width_s=300,
    retention_s=400 * DAY_S,
    node_retention_s=8 * DAY_S,
    table=SeriesFiveMinutes,
)

LEVELS = (SECOND_LEVEL, TEN_SECOND_LEVEL, FIVE_MINUTE_LEVEL)
"""From fine to coarse."""

ROLL_UPS = ((SECOND_LEVEL, TEN_SECOND_LEVEL), (TEN_SECOND_LEVEL, FIVE_MINUTE_LEVEL))
"""Pairs of levels: the first is aggregated into the second."""

MAX_VALUES = frozenset({"version", "steps", "lag", "target", "wait_s", "compute_s", "publish_s"})
"""Values whose maximum a coarse row shows; others show the mean."""


FLEET_SUBJECT = "fleet"
"""Subject of values of all pools together."""

NODES_PER_BUCKET = 1000
"""Nodes per bucket; in a larger fleet nodes take turns: of 10,000, each has ten of every hundred seconds recorded."""

MAX_SHARES = 20_000
"""Maximum names whose latest shares are retained; the oldest are dropped."""

NODE_VALUES = ("episodes", "tokens", "busy", "blocked", "lag", "leased", *SYSTEM_GAUGES)
"""Values of a node: episodes and tokens per second, shares of its slots that worked or found no task, versions behind
its slowest trainer, leased tasks; processor, memory and GPUs where it reports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Values of one subject at one time. None if not measured."""

    level: Level
    at: float
    subject: str
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Shares of a node's time: working, without a task, and paused for new weights."""

    busy: float
    blocked: float
    refresh: float
    is_recent: bool = True
    """True for the last ten seconds; False for all time since the node joined."""


def policy_subject(policy: str) -> str:
    """Subject of a policy."""
    return f"policy/{policy}"


def node_subject(name: str) -> str:
    """Subject of a node, by its name, which survives restarts."""
    return f"node/{name}"


def point_samples(point: Point) -> Iterator[Sample]:
    """Samples of one second."""
    for policy, numbers in point.policies.items():
        values = {name: getattr(numbers, name) for name in VALUES}
        yield Sample(level=SECOND_LEVEL, at=point.at, subject=policy_subject(policy), values=values)
    fleet = {name: getattr(point.fleet, name) for name in FLEET_VALUES}
    yield Sample(level=SECOND_LEVEL, at=point.at, subject=FLEET_SUBJECT, values=fleet)


class _NodeCounters(NamedTuple):
    """Counters of a node at its last heartbeat, in seconds."""

    name: str
    beat_at: float
    busy_s: float
    blocked_s: float
    refresh_s: float

    @classmethod
    def of(cls, node: NodeReport, at: float) -> "_NodeCounters":
        """Returns the counters of a report at this time."""
        return cls(
            name=node.facts.name,
            beat_at=at - node.heartbeat_age_s,
            busy_s=node.counters.get("busy_s", 0.0),
            blocked_s=node.counters.get("blocked_s", 0.0),
            refresh_s=node.counters.get("weight_pause_s", 0.0),
        )

    def shares_since(self, before: "_NodeCounters") -> TimeShares | None:
        """Shares since then; None without a heartbeat or after a restart of the node."""
        elapsed_s = self.beat_at - before.beat_at
        increments = (self.busy_s - before.busy_s, self.blocked_s - before.blocked_s, self.refresh_s - before.refresh_s)
        if elapsed_s <= 0 or min(increments) < 0:
            return None
        busy, blocked, refresh = (min(1.0, seconds / elapsed_s) for seconds in increments)
        return TimeShares(busy=busy, blocked=blocked, refresh=refresh)


class NodeBuckets:
    """Means of node values over ten seconds, collected from consecutive reports.

    Up to `NODES_PER_BUCKET` nodes are in every bucket; in a larger fleet nodes take turns, so that the written data
    does not grow with the fleet.
    """

    def __init__(self) -> None:
        self._start: float | None = None
        self._sums: dict[str, list[float]] = {}
        """Sums of episodes, tokens, lag and leased, and the number of reports, by name."""
        self._latest: dict[NodeId, tuple[NodeReport, float]] = {}
        """Latest reports of the bucket and their times; counters are read at its end, not each second."""
        self._before: dict[NodeId, _NodeCounters] = {}
        """Counters at the end of the previous bucket."""
        self._taken: object = None
        """Nodes of the last report; they may be shared by several reports."""
        self.shares: dict[str, TimeShares] = {}
        """Latest shares, by name."""

    def add(self, report: Report) -> list[Sample]:
        """Adds a report; returns the samples of the bucket that it ends, if any."""
        start = report.at // TEN_SECOND_LEVEL.width_s * TEN_SECOND_LEVEL.width_s
        ended = self._ended() if self._start is not None and start > self._start else []
        self._start = start if self._start is None else max(start, self._start)
        if report.nodes is not self._taken:
            self._taken = report.nodes
            self._take_all(report)
        return ended

    def _take_all(self, report: Report) -> None:
        versions = {stream.policy: int(stream.version) for stream in report.streams}
        turns = -(-len(report.nodes) // NODES_PER_BUCKET)
        turn = int((self._start or 0.0) // TEN_SECOND_LEVEL.width_s) % turns if turns else 0
        for node in report.nodes:
            if node.state in SERVING_STATES and (turns < 2 or crc32(node.facts.name.encode()) % turns == turn):
                self._take(node, report.at, versions)

    def _take(self, node: NodeReport, at: float, versions: Mapping[PolicyId, int]) -> None:
        behind = [versions[policy] - version for policy, version in node.versions.items() if policy in versions]
        total = self._sums.setdefault(node.facts.name, [0.0] * 5)
        total[0] += node.episodes_per_s
        total[1] += node.tokens_per_s
        total[2] += max(0, *behind) if behind else 0
        total[3] += node.leased
        total[4] += 1.0
        self._latest[node.id] = node, at
        if node.id not in self._before:
            self._before[node.id] = _NodeCounters.of(node, at)

    def _ended(self) -> list[Sample]:
        start, sums, shares = self._start or 0.0, self._sums, {}
        now = {id_: _NodeCounters.of(node, at) for id_, (node, at) in self._latest.items()}
        for node, counters in now.items():
            if (node_shares := counters.shares_since(self._before[node])) is not None:
                shares[counters.name] = node_shares
        latest, self._sums, self._before, self._latest = self._latest, {}, now, {}
        self.shares |= shares
        while len(self.shares) > MAX_SHARES:
            del self.shares[next(iter(self.shares))]
        gauges = {node.facts.name: node.gauges for node, _ in latest.values()}
        return [self._sample(start, name, total, shares.get(name), gauges[name]) for name, total in sums.items()]

    @staticmethod
    def _sample(
        start: float, name: str, total: list[float], shares: TimeShares | None, gauges: Mapping[str, float]
    ) -> Sample:
        episodes, tokens, lag, leased = (number / total[-1] for number in total[:-1])
        time_shares = (shares.busy, shares.blocked) if shares is not None else (0.0, 0.0)
        system = map(gauges.get, SYSTEM_GAUGES)
        values = dict(zip(NODE_VALUES, (episodes, tokens, *time_shares, lag, leased, *system), strict=True))
        return Sample(level=TEN_SECOND_LEVEL, at=start, subject=node_subject(name), values=values)
