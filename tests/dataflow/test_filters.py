"""Filters select the finished groups that are worth training on."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.batches import Row
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.dataflow.admission.admitter import Admitter
from astraflow.dataflow.admission.filters import Filter, filters
from astraflow.dataflow.admission.filters.repetition import repeated_share
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.plugin_slot import SlotPlugins
from tests import make
from tests.errors import raises_code

SOLVER = PolicyId("solver")


def written(*stretches: tuple[list[int], int], is_truncated: bool = False, reward: float = 0.0) -> Trajectory:
    """Returns a trajectory of stretches (tokens, version); version -1 is context."""
    return Trajectory(
        policy=SOLVER,
        tokens=np.array([token for tokens, _ in stretches for token in tokens], dtype=np.int32),
        logprobs=np.zeros(sum(len(tokens) for tokens, version in stretches if version >= 0), dtype=np.float32),
        spans=tuple(
            Span(author=Author.MODEL, length=len(tokens), version=Version(version))
            if version >= 0
            else Span(author=Author.CONTEXT, length=len(tokens))
            for tokens, version in stretches
        ),
        reward=reward,
        is_truncated=is_truncated,
    )


def group(*trajectories: Trajectory) -> RoutedGroup:
    name = GroupId("train:0")
    rows = tuple(
        Row(group=name, task=TaskId(f"{name}/{member}"), node=NodeId("node"), trajectory=trajectory)
        for member, trajectory in enumerate(trajectories)
    )
    return RoutedGroup(id=name, flow=FlowId("train"), policy=SOLVER, rows=rows)


def keeps(kind: str, given_group: RoutedGroup, *, version: int = 0, **options: Any) -> bool:
    return filters.build({"kind": kind, **options}).keep(given_group, Version(version))


def slot_plugins(*kinds: str) -> SlotPlugins[Filter]:
    return SlotPlugins(PluginSlot.FILTERS, [{"kind": kind} for kind in kinds], filters.build)


def of_length(tokens: int, *, is_truncated: bool = False) -> Trajectory:
    return written((list(range(tokens)), 0), is_truncated=is_truncated)


def test_length_drops_groups_that_are_mostly_truncated() -> None:
    cut, whole = of_length(5, is_truncated=True), of_length(5)
    assert keeps("length", group(cut, cut, whole, whole))
    assert not keeps("length", group(cut, cut, cut, whole))
    assert keeps("length", group(cut, cut, cut, whole), allows_truncated=True)
    assert not keeps("length", group(cut, whole, whole, whole), max_share=0.0)


def test_length_drops_groups_that_are_mostly_too_short_or_too_long() -> None:
    lengths = group(of_length(2), of_length(9), of_length(5))
    assert not keeps("length", lengths, min_tokens=3, max_tokens=8)
    assert keeps("length", lengths, min_tokens=2, max_tokens=8)
    with raises_code(InvalidInput, "config.invalid", "max_tokens"):
        filters.build({"kind": "length", "min_tokens": 9, "max_tokens": 8})


@pytest.mark.long
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.integers(-1, 2)), max_size=5))
def test_repetition_counts_match_a_reference_implementation(stretches: list[tuple[list[int], int]]) -> None:
    trajectory = written(*stretches)
    grams: set[tuple[int, ...]] = set()
    total = repeated = run_length = 0
    mask, tokens = trajectory.loss_mask(), trajectory.tokens.tolist()
    for end, is_models in enumerate(mask, start=1):
        run_length = run_length + 1 if is_models else 0
        if run_length >= 3:
            gram = tuple(tokens[end - 3 : end])
            total += 1
            repeated += gram in grams
            grams.add(gram)
    assert repeated_share(trajectory, tokens=3) == pytest.approx(repeated / total if total else 0.0)


def test_repetition_drops_groups_that_are_mostly_loops() -> None:
    loop, text = written(([1, 2] * 20, 0)), written((list(range(40)), 0))
    assert keeps("repetition", group(loop, text))
    assert not keeps("repetition", group(loop, loop, text))
    told_twice = written(([1, 2] * 20, -1), (list(range(10)), 0))
    assert keeps("repetition", group(told_twice, told_twice))


def test_off_policy_counts_tokens_by_their_version() -> None:
    crossing = group(written(([1] * 4, 2), ([1] * 6, 4)))
    assert keeps("off_policy", crossing, version=4)
    assert not keeps("off_policy", crossing, version=4, max_share=0.3)
    assert keeps("off_policy", crossing, version=4, max_share=0.3, max_age=2)
    assert not keeps("off_policy", crossing, version=6)
    assert keeps("off_policy", crossing, version=0)  # a token is newer than the trainer's version


stretches = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(-1, 5)), min_size=1, max_size=4
).filter(lambda stretch_list: any(version >= 0 for _, version in stretch_list))


@given(members=st.lists(stretches, min_size=1, max_size=4), version=st.integers(0, 6), age=st.integers(0, 3))
def test_off_policy_matches_a_reference_implementation(
    members: list[list[tuple[list[int], int]]], version: int, age: int
) -> None:
    versions = [of for member in members for tokens, of in member for _ in tokens if of >= 0]
    old = [of for of in versions if max(version, *versions, 0) - of > age]
    kept = keeps("off_policy", group(*(written(*member) for member in members)), version=version, max_age=age)
    assert kept is (len(old) / len(versions) <= 0.5)


@pytest.mark.long
@given(members=st.lists(st.tuples(stretches, st.booleans()), min_size=1, max_size=5), allows=st.booleans())
def test_length_matches_a_reference_implementation(
    members: list[tuple[list[tuple[list[int], int]], bool]], allows: bool
) -> None:
    bad = 0
    for member, is_truncated in members:
        tokens = sum(len(tokens) for tokens, version in member if version >= 0)
        bad += not 2 <= tokens <= 7 or (is_truncated and not allows)
    trajectories = [written(*member, is_truncated=is_truncated) for member, is_truncated in members]
    kept = keeps("length", group(*trajectories), min_tokens=2, max_tokens=7, allows_truncated=allows)
    assert kept is (bad / len(members) <= 0.5)


def test_each_policy_of_a_group_is_filtered_by_its_own_rewards() -> None:
    """Trains only the verifier where the solver always fails and the verifier is right at times."""
    episodes = tuple(
        Episode(
            task=TaskId(f"train:0/{member}"),
            node=NodeId("node"),
            trajectories=(make.trajectory(reward=0.0), make.trajectory(policy="verifier", reward=float(member))),
        )
        for member in range(2)
    )
    both = Group(id=GroupId("train:0"), flow=FlowId("train"), prompt=make.prompt(), episodes=episodes)
    verifier = PolicyId("verifier")
    admitter = Admitter((SOLVER, verifier), slot_plugins("informative"), min_group_size=2)
    admission = admitter.admit(both, {SOLVER: Version(0), verifier: Version(0)})
    assert (set(admission.admitted), admission.refused) == ({verifier}, {SOLVER: "informative"})


@pytest.mark.parametrize("kind", sorted({*filters.built_in_kinds()} - {"keep_all", "route"}))  # which have no metrics
def test_filter_metrics_survive_a_restart(kind: str) -> None:
    before = slot_plugins(kind)
    for _, plugin in before:
        plugin.keep(group(written(([1] * 9, 0), is_truncated=True), written(([1] * 9, 0))), Version(9))
    after = slot_plugins(kind)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.metrics() == before.metrics()
    assert any(before.metrics().values())


def test_metrics_of_two_filters_of_one_kind_have_different_names() -> None:
    assert list(slot_plugins("length", "length").metrics()) == ["length.truncated_share", "length 2.truncated_share"]
