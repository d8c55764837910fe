"""Data algorithms: selectors, filters, samplers."""

from dataclasses import replace
from itertools import pairwise

import pytest

from astraflow.contract.batches import Row
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.trajectories import Episode, Trajectories
from astraflow.dataflow.admission.filters import filters
from astraflow.dataflow.admission.routing import RoutedGroup, route
from astraflow.dataflow.issuing.selectors import selectors
from astraflow.dataflow.serving.buffer import Buffer
from astraflow.dataflow.serving.samplers import samplers
from tests import make
from tests.errors import raises_code


def routed(ordinal: int = 0, *, rewards: tuple[float, ...] = (0.0, 1.0), version: int = 0) -> RoutedGroup:
    return RoutedGroup(
        id=GroupId(f"train:{ordinal}"),
        flow=FlowId("train"),
        policy=PolicyId("solver"),
        rows=tuple(
            Row(
                group=GroupId(f"train:{ordinal}"),
                task=TaskId(f"train:{ordinal}/{member}"),
                node=NodeId("node"),
                trajectory=make.trajectory(reward=reward, version=version),
            )
            for member, reward in enumerate(rewards)
        ),
    )


def test_uniform_continues_its_order_after_a_restart() -> None:
    straight = selectors.build({"kind": "uniform"}, 1000, 7)
    expected = [straight.select() for _ in range(20)]
    first = selectors.build({"kind": "uniform"}, 1000, 7)
    drawn = [first.select() for _ in range(8)]
    second = selectors.build({"kind": "uniform"}, 1000, 7)
    second.load_state_dict(first.state_dict())
    assert drawn + [second.select() for _ in range(12)] == expected
    assert len(set(expected)) > 15


@pytest.mark.parametrize(("rewards", "is_kept"), [((0.0, 1.0), True), ((1.0, 1.0), False), ((0.0, 0.0), False)])
def test_informative_keeps_groups_whose_rewards_differ(rewards: tuple[float, ...], is_kept: bool) -> None:
    informative = filters.build({"kind": "informative"})
    assert informative.keep(routed(rewards=rewards), Version(0)) is is_kept
    assert sum(informative.metrics().values()) == (0 if is_kept else 1)


def in_roles(*rewards: tuple[str, float]) -> RoutedGroup:
    plain = routed(rewards=tuple(reward for _, reward in rewards))
    rows = (
        replace(row, trajectory=replace(row.trajectory, role=role))
        for row, (role, _) in zip(plain.rows, rewards, strict=True)
    )
    return replace(plain, rows=tuple(rows))


@pytest.mark.parametrize(
    ("rewards", "is_kept", "dropped"),
    [
        ([("solver", 0.0), ("verifier", 1.0), ("solver", 0.0), ("verifier", 1.0)], False, "dropped_hard"),
        ([("solver", 1.0), ("verifier", 0.75), ("solver", 1.0), ("verifier", 0.75)], False, "dropped_easy"),
        ([("solver", 0.0), ("verifier", 1.0), ("solver", 0.0), ("verifier", 0.0)], True, ""),
        ([("solver", 0.0), ("verifier", 1.0), ("solver.retry", 1.0)], True, ""),
    ],
)
def test_informative_compares_rewards_of_one_role_and_its_later_attempts(
    rewards: list[tuple[str, float]], is_kept: bool, dropped: str
) -> None:
    informative = filters.build({"kind": "informative"})
    assert informative.keep(in_roles(*rewards), Version(0)) is is_kept
    assert [name for name, count in informative.metrics().items() if count] == ([dropped] if dropped else [])


def test_samplers_weigh_the_roles_of_a_group_alike() -> None:
    mixed = in_roles(("solver", 0.0), ("verifier", 1.0), ("verifier", 1.0), ("verifier", 1.0))
    plain = routed(1, rewards=(0.5, 0.7))
    buffer = Buffer(2)
    for group in (mixed, plain):
        buffer.put(group)
    by_reward = samplers.build({"kind": "priority", "by": "reward"})
    by_spread = samplers.build({"kind": "priority", "by": "spread"})
    replayed = samplers.build({"kind": "replay", "weighting": "reward", "ratio": 0.9})
    groups = buffer.candidates()
    # Over all its trajectories the first group has the higher mean and the higher spread; over its roles, neither.
    assert [sampled.group.id for sampled in by_reward.sample(groups, [], 1, Version(0))] == [plain.id]
    assert [sampled.group.id for sampled in by_spread.sample(groups, [], 1, Version(0))] == [plain.id]
    assert len(replayed.sample(groups[:1], groups[1:], 2, Version(0))) == 2


@pytest.mark.parametrize(("order", "expected"), [("deadline", [1, 3, 0]), ("fifo", [0, 1, 2]), ("freshest", [2, 0, 1])])
def test_fresh_takes_groups_in_its_order(order: str, expected: list[int]) -> None:
    buffer = Buffer(2)
    for ordinal, version in enumerate([4, 3, 5, 3]):
        buffer.put(routed(ordinal, version=version))
    sampler = samplers.build({"kind": "fresh", "order": order})
    chosen = sampler.sample(buffer.candidates(), [], 3, Version(5))
    assert [int(group.id.partition(":")[2]) for group in buffer.take(chosen)] == expected
    assert len(buffer) == 1


def test_failed_members_are_left_out_instead_of_scored_zero() -> None:
    broken = Episode(
        task=TaskId("train:0/2"),
        node=NodeId("node"),
        trajectories=(),
        failure=Failure(boundary=Boundary.REWARD, message="verifier timed out"),
    )
    group = Group(
        id=GroupId("train:0"),
        flow=FlowId("train"),
        prompt=make.prompt(),
        episodes=(make.episode("train:0/0"), make.episode("train:0/1"), broken),
    )
    (share,) = route(group).values()
    assert [row.task for row in share.rows] == ["train:0/0", "train:0/1"]


def test_a_group_of_several_policies_is_split_into_their_written_rows() -> None:
    written = make.trajectory()
    unwritten = replace(written, tokens=written.tokens[:3], logprobs=written.logprobs[:0], spans=written.spans[:1])
    trajectories = [make.trajectory(reward=0.0), make.trajectory(policy="verifier", reward=1.0), unwritten]
    columns = Trajectories.of([*trajectories, *trajectories]).columns
    episodes = [
        replace(make.episode(f"train:0/{member}"), trajectories=Trajectories(columns, 3 * member, 3 * member + 3))
        for member in range(2)
    ]
    group = Group(id=GroupId("train:0"), flow=FlowId("train"), prompt=make.prompt(), episodes=tuple(episodes))
    shares = route(group)
    assert list(shares) == ["solver", "verifier"]
    for policy, share in shares.items():
        assert [row.task for row in share.rows] == ["train:0/0", "train:0/1"]
        assert {row.trajectory.policy for row in share.rows} == {policy}
        assert share.rewards() == (float(policy == "verifier"),) * 2


def test_rows_of_a_group_stay_in_member_order() -> None:
    share = routed(rewards=(0.0, 1.0, 2.0))
    assert all(a.task < b.task for a, b in pairwise(share.rows))


def test_an_unknown_kind_is_refused_with_the_nearest_known() -> None:
    with raises_code(InvalidInput, "plugin.unknown_kind", "'informative'"):
        filters.build({"kind": "infomative"})
    with raises_code(InvalidInput, "config.invalid", "'min_spread'"):
        filters.build({"kind": "informative", "min_spred": 1})
