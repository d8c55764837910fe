"""Staleness gate of a stream: its guarantee, and the demand that it can feed, in virtual time."""

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from astraflow.contract.batches import StepReport
from astraflow.contract.ids import Version
from astraflow.dataflow.serving.stream import Stream
from astraflow.scaling.gates import staleness_needed
from tests.dataflow.test_samplers import SOLVER, routed, slot_plugins
from tests.stateful import machine_test

BATCH, GROUP, SLOTS = 16, 4, 4
STEP_S, EPISODE_S, SPREAD = 1.875, 1.736, 0.5
"""The demand step of `tests/benchmarks/fleet_following --nodes 10`: 8.5 groups a second, episodes lognormal."""

RELOAD_S, PULL_S = 0.13, 0.03
"""Time until nodes serve the new weights, and until the trainer has its batch. Seconds."""


def trained(stream: Stream) -> None:
    """Trains the batch that is out; the trainer advances by one version."""
    assert stream.open_batches
    report = StepReport(
        batch=stream.open_batches[0].id,
        policy=SOLVER,
        version=Version(stream.version + 1),
        wait_s=0,
        compute_s=1,
        publish_s=0,
    )
    stream.acknowledge(report)
    stream.evict_stale()


@dataclass
class Feed:
    """Nodes that keep their slots as full as the gate allows, and a trainer that consumes complete batches."""

    nodes: int
    max_staleness: int
    stream: Stream = field(init=False)
    now: float = 0.0
    waited_s: float = 0.0
    idle_slot_s: float = 0.0
    steps: int = 0
    group_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = Stream(
            SOLVER, batch_groups=BATCH, max_staleness=self.max_staleness, sampler=slot_plugins({"kind": "fresh"})
        )
        self._chance = random.Random(7)
        self._events: list[tuple[float, int, str, int]] = []
        self._queue: list[int] = []
        self._open: dict[int, tuple[float, int, list[int]]] = {}
        """Groups by ordinal: time of issue, members without a result, versions that members began with."""
        self._free = self.nodes * SLOTS
        self._served = Version(0)
        self._is_free = True
        self._free_at = 0.0
        self._scheduled = 0

    def run(self, seconds: float) -> None:
        """Simulates that many seconds from the start."""
        self._lease()
        while self._events[0][0] < seconds:
            at, _, what, subject = heapq.heappop(self._events)
            self.idle_slot_s += self._free * (at - self.now)
            self.now = at
            if what == "episode":
                self._end_episode(subject)
            elif what == "step":
                trained(self.stream)
                self.steps += 1
                self._free_at = at
                self._at(RELOAD_S, "weights", self.stream.version)
                self._at(PULL_S, "pull", 0)
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
        return self.idle_slot_s / self.now / (self.nodes * SLOTS)

    def _at(self, after_s: float, what: str, subject: int) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + after_s, self._scheduled, what, subject))

    def _lease(self) -> None:
        while self._free and (self._queue or self.stream.issue_headroom(self._served) > 0):
            if not self._queue:
                ordinal = self.stream.counts.issued
                self.stream.counts.issued += 1
                self._open[ordinal] = (self.now, GROUP, [])
                self._queue = [ordinal] * GROUP
            ordinal = self._queue.pop()
            self._open[ordinal][2].append(self._served)
            self._free -= 1
            self._at(EPISODE_S * self._chance.lognormvariate(-(SPREAD**2) / 2, SPREAD), "episode", ordinal)

    def _end_episode(self, ordinal: int) -> None:
        issued_at, missing, begun = self._open[ordinal]
        self._free += 1
        self._open[ordinal] = (issued_at, missing - 1, begun)
        if missing == 1:
            del self._open[ordinal]
            self.group_s.append(self.now - issued_at)
            self.stream.admit(routed(ordinal, version=min(begun)))

    def _train(self) -> None:
        if self._is_free and self.stream.next_batch() is not None:
            self._is_free = False
            self.waited_s += self.now - self._free_at
            self._at(STEP_S, "step", 0)


def feed(*, nodes: int, max_staleness: int) -> Feed:
    """Returns the state after 300 simulated seconds."""
    found = Feed(nodes=nodes, max_staleness=max_staleness)
    found.run(300.0)
    return found


def test_a_too_tight_bound_keeps_the_trainer_waiting_with_any_number_of_nodes() -> None:
    """Leaves slots for 1.15 times the demand partly empty in each step; six times as many change little."""
    enough, many = feed(nodes=17, max_staleness=2), feed(nodes=100, max_staleness=2)
    assert enough.wait > 0.1
    assert enough.idle > 0.1
    assert many.wait > 0.08
    assert many.idle > 0.8
    assert enough.stream.counts.dropped["stale"] > 0.05 * enough.stream.counts.issued, "slow groups become stale"


def test_the_bound_of_littles_law_feeds_the_trainer_with_the_same_nodes() -> None:
    tight = feed(nodes=17, max_staleness=2)
    group_s = sum(tight.group_s) / len(tight.group_s)
    needed = staleness_needed(group_s=group_s, step_s=STEP_S)
    assert needed == 3
    fed = feed(nodes=17, max_staleness=needed)
    assert fed.wait < 0.03, "the pull alone is 0.016"
    assert fed.stream.counts.dropped["stale"] < 0.05 * fed.stream.counts.issued


@pytest.mark.parametrize("max_staleness", [2, 3])
def test_groups_in_progress_follow_littles_law(max_staleness: int) -> None:
    found = feed(nodes=100, max_staleness=max_staleness)
    rate = len(found.group_s) / found.now
    in_work = rate * sum(found.group_s) / len(found.group_s)
    assert in_work <= max_staleness * BATCH


class GateUnderFire(RuleBasedStateMachine):
    """Nodes of any lag begin allowed groups, results come in any order or are refused, and the trainer steps."""

    @initialize(batch=st.integers(1, 4), bound=st.integers(0, 4))
    def begin(self, batch: int, bound: int) -> None:
        self.stream = Stream(SOLVER, batch_groups=batch, max_staleness=bound, sampler=slot_plugins({"kind": "fresh"}))
        self.out: list[tuple[int, Version]] = []

    @rule(lag=st.integers(0, 5), groups=st.integers(1, 20))
    def issue_to_a_node(self, lag: int, groups: int) -> None:
        served = Version(max(0, self.stream.version - lag))
        for _ in range(groups):
            if self.stream.issue_headroom(served) <= 0:
                return
            self.out.append((self.stream.counts.issued, served))
            self.stream.counts.issued += 1

    @precondition(lambda self: self.out)
    @rule(data=st.data(), is_refused=st.booleans())
    def complete_a_group(self, data: st.DataObject, is_refused: bool) -> None:
        ordinal, born = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if is_refused:
            self.stream.counts.refused += 1
        else:
            self.stream.admit(routed(ordinal, version=born))

    @rule()
    def take_a_step(self) -> None:
        served = self.stream.next_batch()
        if served is None:
            return
        ages = [served.version - group.oldest_version for group in served.fresh_groups]
        assert max(ages) <= self.stream.max_staleness, "never too stale"
        trained(self.stream)

    @rule()
    def complete_and_train_all_groups_in_time(self) -> None:
        """Checks that all open groups fit into the batches that may still train them."""
        in_time = [(ordinal, born) for ordinal, born in self.out if born >= self.stream.oldest_trainable_version]
        self.stream.counts.refused += len(self.out) - len(in_time)
        before = self.stream.counts.dropped["stale"]
        for ordinal, born in in_time:
            self.stream.admit(routed(ordinal, version=born))
        self.out = []
        while self.stream.next_batch() is not None:
            trained(self.stream)
        assert self.stream.counts.dropped["stale"] == before

    @invariant()
    def issued_groups_fit_into_batches(self) -> None:
        if hasattr(self, "stream"):
            stream = self.stream
            held = len(self.out) + len(stream.buffer) + stream.in_batch
            assert held <= (stream.max_staleness + 1) * stream.batch_groups


TestGateUnderFire = machine_test(GateUnderFire, examples=30, steps=40)
