"""Nodes and a trainer around a real stream, in virtual time."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from astraflow.contract.batches import StepReport
from astraflow.contract.ids import Version
from astraflow.dataflow.issuing.pacing import FinishedGroup
from astraflow.dataflow.serving.stream import Stream
from tests.dataflow.test_samplers import SOLVER, routed, slot_plugins

SLOTS = 4
"""Episodes that a node runs at once."""

RELOAD_S, PULL_S = 0.13, 0.03
"""Time until nodes serve the new weights, and until the trainer has its batch. Seconds."""


def _unchanged(step: int) -> float:
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Simulated nodes and speeds. Times in seconds; the functions take the number of the step and return a factor."""

    nodes: int
    max_staleness: int
    batch_groups: int = 16
    group_size: int = 4
    step_s: float = 1.875
    step_noise: float = 0.0
    """Standard deviation of a step's duration, as a share."""
    episode_s: float = 1.736
    spread: float = 0.5
    """Standard deviation of the logarithm of an episode's duration."""
    usable_share: float = 1.0
    """Share of the groups that pass the filters."""
    step_factor: Callable[[int], float] = _unchanged
    episode_factor: Callable[[int], float] = _unchanged
    nodes_factor: Callable[[int], float] = _unchanged
    is_paced: bool = False
    most_outstanding: int | None = None
    """A constant limit on outstanding groups, for comparison."""
    seed: int = 7


@dataclass
class SimulatedStream:
    """Nodes that keep their slots as full as the stream allows, and a trainer that consumes complete batches."""

    demand: Demand
    stream: Stream = field(init=False)
    now: float = 0.0
    waited_s: float = 0.0
    idle_slot_s: float = 0.0
    steps: int = 0
    group_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    """Mean age of the rows of each batch, in versions."""

    def __post_init__(self) -> None:
        demand = self.demand
        self.stream = Stream(
            SOLVER,
            batch_groups=demand.batch_groups,
            max_staleness=demand.max_staleness,
            sampler=slot_plugins({"kind": "fresh", "order": "deadline"} if demand.step_noise else {"kind": "fresh"}),
            is_paced=demand.is_paced,
        )
        self._chance = random.Random(demand.seed)
        self._events: list[tuple[float, int, str, int]] = []
        self._queue: list[int] = []
        self._open: dict[int, tuple[float, int, list[Version]]] = {}
        """Groups by ordinal: time of issue, members without a result, versions that members began with."""
        self._busy = 0
        self._served = Version(0)
        self._is_free = True
        self._free_at = 0.0
        self._scheduled = 0

    def run(self, *, seconds: float = float("inf"), steps: int = 1_000_000) -> None:
        """Simulates from the start until either limit."""
        self._lease()
        while self._events[0][0] < seconds and self.steps < steps:
            at, _, what, subject = heapq.heappop(self._events)
            self.idle_slot_s += max(0, self._slots - self._busy) * (at - self.now)
            self.now = at
            if what == "episode":
                self._end_episode(subject)
            elif what == "step":
                self._end_step()
            elif what == "weights":
                self._served = Version(subject)
            else:
                self._is_free = True
            self._train()
            self._lease()

    @property
    def wait(self) -> float:
        """Share of the time for which the trainer waited."""
        return self.waited_s / self.now

    @property
    def idle(self) -> float:
        """Share of the slots that were empty."""
        return self.idle_slot_s / self.now / (self.demand.nodes * SLOTS)

    @property
    def _slots(self) -> int:
        return round(self.demand.nodes * SLOTS * self.demand.nodes_factor(self.steps))

    def _at(self, after_s: float, what: str, subject: int) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + after_s, self._scheduled, what, subject))

    def _may_issue(self) -> bool:
        counts, most = self.stream.counts, self.demand.most_outstanding
        if self.stream.issue_headroom(self._served) <= 0:
            return False
        if most is not None and counts.issued - counts.refused - counts.admitted + len(self.stream.buffer) >= most:
            return False
        pace = self.stream.pace()
        return pace is None or not pace.is_reached

    def _lease(self) -> None:
        demand = self.demand
        while self._busy < self._slots and (self._queue or self._may_issue()):
            if not self._queue:
                ordinal = self.stream.counts.issued
                self.stream.counts.issued += 1
                self._open[ordinal] = (self.now, demand.group_size, [])
                self._queue = [ordinal] * demand.group_size
            ordinal = self._queue.pop()
            self._open[ordinal][2].append(self._served)
            self._busy += 1
            episode_s = demand.episode_s * demand.episode_factor(self.steps)
            self._at(
                episode_s * self._chance.lognormvariate(-(demand.spread**2) / 2, demand.spread), "episode", ordinal
            )

    def _end_episode(self, ordinal: int) -> None:
        issued_at, missing, begun = self._open[ordinal]
        self._busy -= 1
        self._open[ordinal] = (issued_at, missing - 1, begun)
        if missing > 1:
            return
        del self._open[ordinal]
        self.group_s.append(self.now - issued_at)
        is_usable = self.demand.usable_share == 1 or self._chance.random() < self.demand.usable_share
        if self.stream.pacer is not None:
            self.stream.pacer.observe_group(FinishedGroup(duration_s=self.now - issued_at, is_usable=is_usable))
        if is_usable:
            self.stream.admit(routed(ordinal, version=min(begun)))
        else:
            self.stream.counts.refused += 1

    def _train(self) -> None:
        if not self._is_free or (batch := self.stream.next_batch(now=self.now)) is None:
            return
        self._is_free = False
        self.waits_s.append(self.now - self._free_at)
        self.waited_s += self.waits_s[-1]
        ages = [self.stream.version - group.oldest_version for group in batch.fresh_groups]
        self.ages.append(sum(ages) / len(ages))
        noise = max(0.2, 1 + self.demand.step_noise * self._chance.gauss(0, 1)) if self.demand.step_noise else 1.0
        self.steps_s.append(self.demand.step_s * self.demand.step_factor(self.steps) * noise)
        self._at(self.steps_s[-1], "step", 0)

    def _end_step(self) -> None:
        trained(self.stream, compute_s=self.steps_s[-1])
        self.steps += 1
        self._free_at = self.now
        self._at(RELOAD_S, "weights", self.stream.version)
        self._at(PULL_S, "pull", 0)


def trained(stream: Stream, *, compute_s: float = 1.0) -> None:
    """Trains the batch that is out; the trainer advances by one version."""
    assert stream.open_batches
    report = StepReport(
        batch=stream.open_batches[0].id,
        policy=SOLVER,
        version=Version(stream.version + 1),
        wait_s=0,
        compute_s=compute_s,
        publish_s=0,
    )
    stream.acknowledge(report)
    stream.evict_stale()
