"""Samplers compose batches."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.batches import Row, StepReport
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.plugins import PluginSlot, PluginSpec
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.dataflow.serving.buffer import Buffer
from astraflow.dataflow.serving.samplers import Sampler, samplers
from astraflow.dataflow.serving.stream import Stream
from tests import make

SOLVER = PolicyId("solver")
MAX_STALENESS = 2


def routed(ordinal: int, *, rewards: tuple[float, ...] = (0.0, 1.0), version: int = 0) -> RoutedGroup:
    name = GroupId(f"train:{ordinal}")
    rows = tuple(
        Row(
            group=name,
            task=TaskId(f"{name}/{member}"),
            node=NodeId("node"),
            trajectory=make.trajectory(reward=reward, version=version),
        )
        for member, reward in enumerate(rewards)
    )
    return RoutedGroup(id=name, flow=FlowId("train"), policy=SOLVER, rows=rows)


def buffer(groups: Sequence[RoutedGroup]) -> Buffer:
    filled = Buffer(MAX_STALENESS)
    for group in groups:
        filled.put(group)
    return filled


def slot_plugins(spec: PluginSpec) -> SlotPlugins[Sampler]:
    return SlotPlugins(PluginSlot.SAMPLER, [spec], samplers.build)


def sampled(sampler: Sampler, fresh: Sequence[RoutedGroup], trained: Sequence[RoutedGroup], version: int) -> list[int]:
    chosen = sampler.sample(buffer(fresh).candidates(), buffer(trained).candidates(), 4, Version(version))
    return [int(choice.group.id.partition(":")[2]) for choice in chosen]


def build(kind: str, **options: Any) -> Sampler:
    return samplers.build({"kind": kind, **options})


@given(
    kind=st.sampled_from(["fresh", "priority", "replay"]),
    count=st.integers(1, 8),
    fresh=st.lists(st.integers(3, 5), min_size=8, max_size=20),
    trained=st.lists(st.integers(3, 5), max_size=12),
)
def test_a_batch_has_distinct_groups_and_at_most_the_configured_replays(
    kind: str, count: int, fresh: list[int], trained: list[int]
) -> None:
    sampler = build(kind)
    needed = sampler.fresh_count(count, len(trained))
    assert 1 <= needed <= count
    offered = buffer([routed(number, version=version) for number, version in enumerate(fresh[: max(needed, 1)])])
    again = buffer([routed(100 + number, version=version) for number, version in enumerate(trained)])
    chosen = sampler.sample(offered.candidates(), again.candidates(), count, Version(5))
    names = [choice.group.id for choice in chosen]
    assert len(names) == len(set(names)) == count
    assert sum(int(name.partition(":")[2]) >= 100 for name in names) <= count - needed


def test_priority_prefers_groups_at_their_deadline_then_the_widest_spread() -> None:
    groups = [
        routed(0, rewards=(0.0, 0.1), version=3),
        routed(1, rewards=(0.0, 0.5), version=4),
        routed(2, rewards=(0.0, 1.0), version=5),
        routed(3, rewards=(0.9, 1.0), version=5),
        routed(4, rewards=(0.0, 0.7), version=5),
    ]
    assert sampled(build("priority"), groups, [], 5) == [0, 2, 4, 1]
    assert sampled(build("priority", by="reward"), groups, [], 4) == [3, 2, 4, 1]


def test_replay_fills_its_share_from_the_available_groups() -> None:
    replay = build("replay", ratio=0.5)
    fresh = [routed(number, version=5) for number in range(6)]
    trained = [routed(100 + number, version=5) for number in range(3)]
    assert (replay.fresh_count(4, 0), replay.fresh_count(4, 1), replay.fresh_count(4, 99)) == (4, 3, 2)
    chosen = sampled(replay, fresh, trained, 5)
    assert chosen[:2] == [0, 1]
    assert len(set(chosen[2:]) & {100, 101, 102}) == 2
    assert sampled(replay, fresh, [], 5) == [0, 1, 2, 3]
    assert replay.metrics() == {"replayed_share": 0.25}


def test_a_fresh_group_at_its_deadline_precedes_replays() -> None:
    fresh = [routed(number, version=3) for number in range(3)] + [routed(3, version=5)]
    assert sampled(build("replay", ratio=0.5), fresh, [routed(100, version=5)] * 3, 5)[:3] == [0, 1, 2]


@pytest.mark.parametrize(("weighting", "preferred"), [("recency", 101), ("reward", 100), ("uniform", None)])
def test_replay_prefers_groups_by_its_weighting(weighting: str, preferred: int | None) -> None:
    replay = build("replay", ratio=0.25, weighting=weighting)
    counts = Counter[int]()
    for version in range(8, 808):
        old_right = routed(100, rewards=(1.0, 1.0), version=version - 2)
        new_wrong = routed(101, rewards=(0.0, 0.2), version=version)
        fresh = [routed(number, version=version) for number in range(4)]
        counts[sampled(replay, fresh, [old_right, new_wrong], version)[-1]] += 1
    if preferred is None:
        assert counts[100] == pytest.approx(400, abs=60)
    else:
        assert counts[preferred] > 600


@pytest.mark.long
@pytest.mark.parametrize(
    ("weighting", "expected"), [("recency", 1 / (1 + 0.25)), ("reward", 0.2 / (0.2 + 0.8)), ("uniform", 0.5)]
)
def test_replay_draws_in_proportion_to_its_weights(weighting: str, expected: float) -> None:
    replay = build("replay", ratio=0.25, weighting=weighting)
    new = 0
    for version in range(8, 4008):
        trained = [
            routed(100, rewards=(0.8, 0.8), version=version - 2),
            routed(101, rewards=(0.2, 0.2), version=version),
        ]
        new += sampled(replay, [routed(number, version=version) for number in range(4)], trained, version)[-1] == 101
    assert new / 4000 == pytest.approx(expected, abs=0.03)  # four standard deviations


def test_replay_weights_differ_for_very_old_groups() -> None:
    replay = build("replay", ratio=0.25)
    trained = [routed(number, version=5000 - 40 * number) for number in range(100, 104)]
    assert sampled(replay, [routed(number, version=9999) for number in range(4)], trained, 9999)[-1] == 100


@pytest.mark.parametrize("kind", ["priority", "replay"])
def test_sampler_metrics_survive_a_restart(kind: str) -> None:
    before, after = build(kind), build(kind)
    sampled(before, [routed(number) for number in range(4)], [routed(9)], MAX_STALENESS)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.metrics() == before.metrics()


def test_with_replay_the_gate_issues_the_groups_that_batches_need() -> None:
    """Issues no group that becomes stale and never keeps the trainer waiting, however fast the nodes are.

    With such nodes groups wait until their deadline, so that at times there is nothing to replay.
    """
    stream = Stream(SOLVER, batch_groups=8, max_staleness=4, sampler=slot_plugins({"kind": "replay", "ratio": 0.5}))
    ordinal = 0
    for step in range(60):
        while stream.issue_headroom() > 0:
            stream.counts.issued += 1
            stream.admit(routed(ordinal, version=stream.version))
            ordinal += 1
        served = stream.next_batch()
        assert served is not None
        report = StepReport(
            batch=served.id, policy=SOLVER, version=Version(step + 1), wait_s=0, compute_s=1, publish_s=0
        )
        stream.acknowledge(report)
        stream.evict_stale()
        stream.release_stale_replayable()
    assert sum(stream.counts.dropped.values()) == 0
    assert stream.counts.trained + stream.counts.replayed == 60 * 8
    assert 0.35 < stream.counts.replayed / (60 * 8) <= 0.5


@pytest.mark.parametrize("reward", [0.0, 0.001, 1.0])
def test_trained_groups_of_equal_weight_are_replayed_equally_often(reward: float) -> None:
    """Replays the group trained first as often as the last one, however small the weight."""
    trained = [routed(number, rewards=(reward, reward)) for number in range(4)]
    sampler = build("replay", ratio=0.75, weighting="reward")
    drawn = Counter(number for version in range(400) for number in sampled(sampler, [routed(100)], trained, version))
    assert drawn.pop(100) == 400
    assert sum(drawn.values()) == 3 * 400
    assert all(255 <= drawn[number] <= 345 for number in range(4)), drawn  # 300 each, standard deviation 9


def test_very_old_groups_can_be_replayed() -> None:
    """Gives very old groups a small weight, never zero, where the staleness bound allows them."""
    sampler = build("replay", ratio=0.25)
    old = [routed(number, version=0) for number in range(2)]
    assert sampled(sampler, [routed(100 + number) for number in range(3)], old, 5000)[-1] in (0, 1)


def test_replays_do_not_depend_on_the_order_of_the_groups() -> None:
    trained = [routed(number) for number in range(8)]
    fresh = [routed(100 + number) for number in range(2)]
    sampler = build("replay", ratio=0.5)
    assert sampled(sampler, fresh, trained, 1) == sampled(sampler, fresh, trained[::-1], 1)
