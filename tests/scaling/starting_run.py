"""Start of a run in virtual time: episodes, groups and steps one by one, reported each second to the rule."""

import heapq
import math
import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from astraflow.contract.fleet.recommendations import Mode, PoolRecommendation
from astraflow.contract.reports.report import Report
from astraflow.scaling.measurement.observation import Observer
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerState
from tests import make
from tests.scaling.make import POOL

SLOTS, GROUP, BATCH = 8, 4, 4
"""Episodes that a node runs at once, episodes of a group, groups of a batch."""

LAUNCH_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Nodes and durations. Times in seconds."""

    nodes: int
    step_s: float
    episode_s: float
    max_staleness: int = 8
    spread: float = 0.5
    """Standard deviation of the logarithm of an episode's duration."""
    seed: int = 0

    @property
    def needed(self) -> float:
        """Nodes that keep the trainer busy, as a fraction."""
        return BATCH * GROUP / self.step_s * self.episode_s / SLOTS


@dataclass
class StartingRun:
    """Nodes that are empty at first and keep their slots as full as the staleness gate allows, beside one trainer."""

    start: Start
    spec: Spec = field(
        default_factory=lambda: Spec(
            options=SizerOptions(tick_s=10.0, window_long_s=120.0, window_short_s=30.0),
            pools={POOL: PoolOptions(mode=Mode.ON, max_nodes=100, launch_delay_s=LAUNCH_S)},
        )
    )
    recommendations: list[PoolRecommendation] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.start.seed)
        self._events: list[tuple[float, int, str, int]] = []
        self._scheduled = 0
        self._queue: deque[int] = deque()
        self._open: Counter[int] = Counter()
        self._issued = self._admitted = self._steps = self._buffered = 0
        self._wait_s, self._free_at, self._is_free = 0.0, 0.0, True
        self._busy: list[int] = []
        self._done: list[int] = []
        self._busy_s: list[float] = []
        self._observer, self._state, self._tick_at = Observer(self.spec), SizerState(), -math.inf

    def run(self, seconds: float) -> "StartingRun":
        """Runs the first seconds of the run."""
        for number in range(self.start.nodes):
            self._at(0.5 * number, "node", 0)
        self._at(0.0, "report", 0)
        while self._events[0][0] < seconds:
            at, _, what, subject = heapq.heappop(self._events)
            for node, slots in enumerate(self._busy):
                self._busy_s[node] += (at - self.now) * slots / SLOTS
            self.now = at
            if what == "node":
                self._busy.append(0)
                self._done.append(0)
                self._busy_s.append(0.0)
            elif what == "episode":
                self._end_episode(*divmod(subject, 1_000_000))
            elif what == "step":
                self._is_free, self._free_at, self._steps = True, at, self._steps + 1
            else:
                self._report()
            self._train()
            self._lease()
        return self

    @property
    def largest_target(self) -> int:
        """The most nodes that the rule asked for."""
        return max(recommendation.target for recommendation in self.recommendations)

    def _at(self, at: float, what: str, subject: int) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (at, self._scheduled, what, subject))

    def _lease(self) -> None:
        limit = (self._steps + self.start.max_staleness + 1) * BATCH
        for node in range(len(self._busy)):
            while self._busy[node] < SLOTS:
                if not self._queue:
                    if self._issued == limit:
                        return
                    self._queue.extend([self._issued] * GROUP)
                    self._issued += 1
                group = self._queue.popleft()
                self._busy[node] += 1
                spread = self.start.spread
                seconds = self.start.episode_s * math.exp(self._chance.gauss(-(spread**2) / 2, spread))
                self._at(self.now + seconds, "episode", node * 1_000_000 + group)

    def _end_episode(self, node: int, group: int) -> None:
        self._busy[node] -= 1
        self._done[node] += 1
        self._open[group] += 1
        if self._open[group] == GROUP:
            del self._open[group]
            self._admitted, self._buffered = self._admitted + 1, self._buffered + 1

    def _train(self) -> None:
        if self._is_free and self._buffered >= BATCH:
            self._wait_s += self.now - self._free_at
            self._is_free, self._buffered = False, self._buffered - BATCH
            self._at(self.now + self.start.step_s, "step", 0)

    def _report(self) -> None:
        self._observer.observe(self._report_now(), ordered_at=self._state.missing_since)
        self._at(self.now + 1.0, "report", 0)
        if self.now - self._tick_at < self.spec.tick_s:
            return
        self._tick_at = self.now
        before = len(self._busy) + sum(what == "node" for _, _, what, _ in self._events)
        result = decide(self._observer.signals(), self.spec, self._state)
        self._state = result.state
        self.recommendations += result.recommendations
        for _ in range(result.recommendations[0].target - before if result.recommendations else 0):
            self._at(self.now + LAUNCH_S, "node", 0)

    def _report_now(self) -> Report:
        nodes = tuple(
            replace(
                make.node_report(f"node-{row}.{row}", counters={"episodes_done": done, "busy_s": busy_s}),
                facts=replace(make.node_report().facts, pool=POOL, capacity=SLOTS),
            )
            for row, (done, busy_s) in enumerate(zip(self._done, self._busy_s, strict=True))
        )
        flow = replace(
            make.flow_report(issued=self._issued, dropped=0),
            open=self._issued - self._admitted,
            admitted=self._admitted,
            tasks_queued=len(self._queue),
            tasks_leased=sum(self._busy),
            episodes={"accepted": sum(self._done)},
        )
        stream = make.stream_report(
            steps=self._steps,
            batch_groups=BATCH,
            admitted=self._admitted,
            buffered=self._buffered,
            trained=self._steps * BATCH,
            wait_s=self._wait_s,
            compute_s=self._steps * self.start.step_s,
            publish_s=0.0,
            is_waiting=self._is_free,
        )
        return replace(make.report(stream, flows=(flow,), nodes=nodes), at=1000.0 + self.now)
