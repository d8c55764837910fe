"""Rules over the metadata of trajectories: which streams receive a group, and which groups are trained first."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.batches import Row
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.trajectories import Ending, Episode
from astraflow.dataflow.admission.admitter import Admitter
from astraflow.dataflow.admission.filters import build_filter
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.config import StreamConfig
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.dataflow.serving.samplers import samplers
from astraflow.dataflow.serving.stream import Stream
from tests import make
from tests.dataflow.test_multi_policy import SOLVER, VERIFIER, TwoTrainersUnderFire
from tests.dataflow.test_multi_policy import config as two_policies
from tests.dataflow.test_samplers import sampled
from tests.errors import raises_code
from tests.stateful import machine_test

BOTH = (SOLVER, VERIFIER)


def share(policy: PolicyId, *rewards: float, version: int = 0, **changes: Any) -> RoutedGroup:
    """Returns a policy's share of a group. changes: of each of its trajectories."""
    name = GroupId("train:0")
    rows = tuple(
        Row(
            group=name,
            task=TaskId(f"{name}/{member}"),
            node=NodeId("node"),
            trajectory=replace(make.trajectory(policy=policy, reward=reward, version=version), **changes),
        )
        for member, reward in enumerate(rewards)
    )
    return RoutedGroup(id=name, flow=FlowId("train"), policy=policy, rows=rows)


def route(*rules: dict[str, Any], policies: tuple[PolicyId, ...] = BOTH) -> Any:
    return build_filter({"kind": "route", "rules": list(rules)}, policies)


@pytest.mark.parametrize(
    ("condition", "matching", "other"),
    [
        ({"labels": {"game": "chess"}}, {"labels": {"game": "chess", "level": "2"}}, {"labels": {"game": "go"}}),
        ({"roles": ["critic"]}, {"role": "critic.retry"}, {"role": "author"}),
        ({"endings": ["malformed"]}, {"ending": Ending.MALFORMED}, {"ending": None}),
    ],
)
def test_each_kind_of_metadata_routes_a_group(
    condition: dict[str, Any], matching: dict[str, Any], other: dict[str, Any]
) -> None:
    plugin = route({**condition, "to": ["verifier"]})
    assert not plugin.keep(share(SOLVER, 0.0, 1.0, **matching), Version(0))
    assert plugin.keep(share(VERIFIER, 0.0, 1.0, **matching), Version(0))
    assert plugin.keep(share(SOLVER, 0.0, 1.0, **other), Version(0)), "no rule holds: its own stream receives it"


def test_rewards_and_ages_route_by_the_majority_of_a_group() -> None:
    plugin = route({"reward_at_least": 0.5, "reward_below": 1.0, "age_at_least": 2, "to": []})
    assert not plugin.keep(share(SOLVER, 0.5, 0.9, 0.0, version=3), Version(5))
    assert plugin.keep(share(SOLVER, 0.5, 0.9, 0.0, version=4), Version(5))
    assert plugin.keep(share(SOLVER, 0.5, 1.0, version=3), Version(5)), "half of the group is no majority"


def test_the_first_rule_that_holds_decides_and_is_counted() -> None:
    plugin = route({"reward_at_least": 1.0, "to": ["solver"]}, {"to": ["verifier"]})
    assert [plugin.keep(share(policy, 1.0, 1.0), Version(0)) for policy in BOTH] == [True, False]
    assert [plugin.keep(share(policy, 0.0, 0.0), Version(0)) for policy in BOTH] == [False, True]
    counts = {"rule_1_matched": 2, "rule_1_dropped": 1, "rule_2_matched": 2, "rule_2_dropped": 1, "unmatched": 0}
    assert plugin.metrics() == counts


@pytest.mark.parametrize(
    ("rules", "part"),
    [
        ([{"to": ["critic"]}], "rules.0.to names 'critic', but this flow trains 'solver', 'verifier'"),
        ([{"reward_below": 0.5, "to": []}, {"to": ["solver"]}], "no rule routes anything to 'verifier'"),
    ],
)
def test_rules_that_cannot_work_in_their_flow_are_refused(rules: list[dict[str, Any]], part: str) -> None:
    with raises_code(InvalidInput, "filters.impossible_route", part):
        route(*rules)


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [{"to": ["solver", "verifier"]}, {"reward_below": 0.5, "to": []}],
        [{"reward_at_least": 1.0, "reward_below": 1.0, "to": []}],
        [{"endings": ["tired"], "to": []}],
        [{"reward_above": 0.5, "to": []}],
        [{"age_at_least": 0, "to": []}],
    ],
)
def test_rules_that_can_never_hold_or_be_reached_are_refused(rules: list[dict[str, Any]]) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        route(*rules)


def test_priorities_order_groups_after_those_at_their_deadline() -> None:
    rules = [{"labels": {"game": "chess"}, "priority": 2.0}, {"reward_below": 0.5, "priority": -1.0}]
    plugin = samplers.build({"kind": "priority", "by": "rules", "rules": rules})
    shares = {
        0: share(SOLVER, 0.0, 0.0, version=2),
        1: share(SOLVER, 1.0, 1.0, version=2),
        2: share(SOLVER, 0.0, 0.0, version=2, labels={"game": "chess"}),
        3: share(SOLVER, 0.0, 0.0, version=1),  # at its deadline
        4: share(SOLVER, 1.0, 1.0, version=2),
    }
    fresh = [replace(group, id=GroupId(f"train:{number}")) for number, group in shares.items()]
    assert sampled(plugin, fresh, [], version=3) == [3, 2, 1, 4]
    assert plugin.metrics() == {"urgent_share": 0.25, "rule_1_taken": 1.0, "rule_2_taken": 1.0}
    again = samplers.build({"kind": "priority", "by": "rules", "rules": rules})
    again.load_state_dict(json.loads(json.dumps(plugin.state_dict())))
    assert again.metrics() == plugin.metrics()


@pytest.mark.parametrize("options", [{"by": "rules"}, {"rules": [{"priority": 1.0}]}])
def test_rules_of_a_sampler_need_to_be_chosen(options: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "config.invalid"):
        samplers.build({"kind": "priority", **options})


members = st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 4), st.sampled_from(["chess", "go"]))
conditions = st.fixed_dictionaries(
    {"to": st.lists(st.sampled_from(["solver", "verifier"]), unique=True)},
    optional={
        "labels": st.just({"game": "chess"}),
        "reward_at_least": st.just(1.0),
        "age_at_least": st.integers(1, 3),
    },
).filter(lambda rule: len(rule) > 1)


@given(
    rules=st.lists(conditions, min_size=1, max_size=3),
    groups=st.lists(st.lists(members, min_size=1, max_size=3), max_size=12),
    kill_after=st.integers(0, 12),
)
def test_every_share_of_a_group_is_buffered_dropped_as_stale_or_refused_by_a_rule(
    rules: list[dict[str, Any]], groups: list[list[tuple[float, int, str]]], kill_after: int
) -> None:
    def admitter() -> Admitter:
        specs: list[dict[str, Any]] = [{"kind": "route", "rules": rules}]
        plugins = SlotPlugins(PluginSlot.FILTERS, specs, lambda spec: build_filter(spec, BOTH))
        return Admitter(BOTH, plugins, min_group_size=1)

    sampler = SlotPlugins(PluginSlot.SAMPLER, [{"kind": "fresh"}], samplers.build)
    streams = {policy: Stream(policy, batch_groups=2, max_staleness=2, sampler=sampler) for policy in BOTH}
    for stream in streams.values():
        stream.attach(Version(4))
    refused: Counter[PolicyId] = Counter()
    deciding = admitter()
    for number, group in enumerate(groups):
        if number == kill_after:
            state = json.loads(json.dumps(deciding.state_dict()))
            deciding = admitter()
            deciding.load_state_dict(state)
        admission = deciding.admit(whole(number, group), {policy: Version(4) for policy in BOTH})
        assert set(admission.admitted) | set(admission.refused) == set(BOTH)
        assert set(admission.refused.values()) <= {"route"}
        refused.update(list(admission.refused))
        for policy, routed in admission.admitted.items():
            assert {row.trajectory.policy for row in routed.rows} == {policy}
            assert len(routed.rows) == len(group), "the group is whole"
            streams[policy].admit(routed)
    for policy, stream in streams.items():
        counts = stream.counts
        assert counts.admitted + refused[policy] == len(groups)
        assert counts.admitted == len(stream.buffer) + counts.dropped["stale"]
    measured = deciding.metrics()
    dropped = sum(value for name, value in measured.items() if name.endswith("_dropped"))
    matched = sum(value for name, value in measured.items() if name.endswith("_matched"))
    assert dropped == refused.total()
    assert matched + measured["route.unmatched"] == 2 * len(groups)


def whole(number: int, group: list[tuple[float, int, str]]) -> Group:
    """Returns a group with a trajectory of each policy in each episode: reward, version and game of each member."""
    name = GroupId(f"train:{number}")
    episodes = tuple(
        Episode(
            task=TaskId(f"{name}/{member}"),
            node=NodeId("node"),
            trajectories=tuple(
                replace(make.trajectory(policy=policy, reward=reward, version=version), labels={"game": game})
                for policy in BOTH
            ),
        )
        for member, (reward, version, game) in enumerate(group)
    )
    return Group(id=name, flow=FlowId("train"), prompt=make.prompt(), episodes=episodes)


class RoutedUnderFire(TwoTrainersUnderFire):
    """The same with a rule that routes solved groups to the verifier only, and priorities, while dataflow is killed."""

    by_rules = {"kind": "priority", "by": "rules", "rules": [{"reward_at_least": 1.0, "priority": 1.0}]}  # noqa: RUF012 (read only)
    config = two_policies(
        solver=StreamConfig(batch_groups=2, max_staleness=2, sampler=by_rules),
        verifier=StreamConfig(batch_groups=3, max_staleness=1, sampler=by_rules),
        shared=True,
        filters=({"kind": "route", "rules": [{"reward_at_least": 1.0, "to": [VERIFIER]}]},),
    )


TestRoutedUnderFire = machine_test(RoutedUnderFire, examples=6, steps=30)
