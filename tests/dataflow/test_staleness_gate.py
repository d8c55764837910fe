"""Staleness gate of a stream: its guarantee, and the demand that it can feed, in virtual time."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from astraflow.contract.ids import Version
from astraflow.dataflow.serving.stream import Stream
from astraflow.scaling.measurement.gates import staleness_needed
from tests.dataflow.simulated_stream import Demand, SimulatedStream, trained
from tests.dataflow.test_samplers import SOLVER, routed, slot_plugins
from tests.stateful import machine_test

pytestmark = pytest.mark.long


def feed(*, nodes: int, max_staleness: int) -> SimulatedStream:
    """Returns the state after 300 simulated seconds. The demand step of `benchmarks/fleet_following --nodes 10`:
    8.5 groups a second, episodes lognormal."""
    stream = SimulatedStream(Demand(nodes=nodes, max_staleness=max_staleness))
    stream.run(seconds=300.0)
    return stream


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
    needed = staleness_needed(group_s=group_s, step_s=tight.demand.step_s)
    assert needed == 3
    fed = feed(nodes=17, max_staleness=needed)
    assert fed.wait < 0.03, "the pull alone is 0.016"
    assert fed.stream.counts.dropped["stale"] < 0.05 * fed.stream.counts.issued


@pytest.mark.parametrize("max_staleness", [2, 3])
def test_groups_in_progress_follow_littles_law(max_staleness: int) -> None:
    stream = feed(nodes=100, max_staleness=max_staleness)
    rate = len(stream.group_s) / stream.now
    in_work = rate * sum(stream.group_s) / len(stream.group_s)
    assert in_work <= max_staleness * stream.demand.batch_groups


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
