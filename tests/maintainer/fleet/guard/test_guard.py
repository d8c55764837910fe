"""The guard's guarantees hold for every proposal and every actor."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.fleet.instances import Instance, InstanceState, LaunchId
from astraflow.contract.fleet.plans import Actor, Role, Verdict
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from maintainer.fleet.guard.approval import may_approve
from maintainer.fleet.guard.guard import (
    AUTOMATIC_MODES,
    MAX_HOLD_S,
    ProposedChange,
    Rejection,
    Situation,
    hold_s,
    judge,
    nodes_beyond_rule,
)
from maintainer.fleet.guard.rules import HUMAN_ROLES, Limits, verdict
from maintainer.fleet.ledger.lifecycle import COUNTED_STATES

NOW = 10_000.0
LIVE_STATES = [state for state in InstanceState if state is not InstanceState.GONE]


def instance(ordinal: int, state: InstanceState = InstanceState.READY, usd: float = 1.0) -> Instance:
    return Instance(
        id=LaunchId(f"L{ordinal}"),
        pool=PoolId("eu"),
        state=state,
        provider="cloud",
        usd_per_hour=usd,
        actor="a",
        reason="r",
        intended_at=0.0,
        expires_at=1e9,
    )


def situation(nodes: int = 8, **changes: Any) -> Situation:
    instances = changes.pop("instances", tuple(instance(ordinal) for ordinal in range(nodes)))
    calm = Situation(
        now=NOW,
        spec=PoolSpec(id=PoolId("eu"), provider="cloud", mode=Mode.ON, max_nodes=20),
        instances=instances,
        target=len(instances),
        rule_target=len(instances),
        report_age_s=1.0,
        changed_at=(),
        cool_down_s=60.0,
        hold_until_at=None,
        breaker_until=None,
        kill=KillScope.NONE,
        usd_per_hour=float(len(instances)),
        usd_today=0.0,
        fleet_usd_per_hour=float(len(instances)),
        fleet_usd_today=0.0,
    )
    return replace(calm, **changes)


def proposal(pool_situation: Situation, target: int, *, role: Role = Role.AGENT, **changes: Any) -> ProposedChange:
    counted = [instance for instance in pool_situation.instances if instance.state in COUNTED_STATES]
    launches = max(0, target - len(counted))
    victims = tuple(counted[: max(0, len(counted) - target)])
    plain = ProposedChange(
        actor=Actor(name="x", role=role),
        target=target,
        launches=launches,
        victims=victims,
        usd_per_hour_change=float(launches - len(victims)),
    )
    return replace(plain, **changes)


def codes(pool_situation: Situation, wanted: ProposedChange, limits: Limits | None = None) -> set[str]:
    return {finding.code.value for finding in judge(pool_situation, wanted, limits or Limits())}


def verdict_of(pool_situation: Situation, wanted: ProposedChange, limits: Limits | None = None) -> Verdict:
    return verdict(judge(pool_situation, wanted, limits or Limits()))


situations = st.builds(
    situation,
    instances=st.lists(st.sampled_from(LIVE_STATES), max_size=12).map(
        lambda states: tuple(instance(ordinal, state) for ordinal, state in enumerate(states))
    ),
    spec=st.builds(
        lambda low, room, mode, usd: PoolSpec(
            id=PoolId("eu"), provider="cloud", mode=mode, min_nodes=low, max_nodes=low + room, usd_per_hour_max=usd
        ),
        st.integers(0, 5),
        st.integers(0, 15),
        st.sampled_from(Mode),
        st.none() | st.floats(0, 30),
    ),
    target=st.integers(0, 20),
    rule_target=st.none() | st.integers(0, 20),
    report_age_s=st.none() | st.floats(0, 1000),
    changed_at=st.lists(st.floats(NOW - 7200, NOW), max_size=6).map(lambda at: tuple(sorted(at))),
    hold_until_at=st.none() | st.floats(NOW - 100, NOW + 100),
    breaker_until=st.none() | st.floats(NOW - 100, NOW + 100),
    kill=st.sampled_from(KillScope),
    usd_today=st.floats(0, 100),
)
wanted_sizes = st.integers(0, 25)
roles = st.sampled_from(Role)


@pytest.mark.long
@given(situations, wanted_sizes, roles)
def test_an_allowed_plan_is_inside_every_bound(pool_situation: Situation, target: int, role: Role) -> None:
    wanted = proposal(pool_situation, target, role=role)
    if verdict_of(pool_situation, wanted) is Verdict.REFUSED:
        return
    spec = pool_situation.spec
    assert target <= max(spec.max_nodes, pool_situation.size - 1)
    assert target >= min(spec.min_nodes, pool_situation.size + 1)
    assert pool_situation.kill is not KillScope.ALL
    if spec.usd_per_hour_max is not None and wanted.usd_per_hour_change > 0:
        assert pool_situation.usd_per_hour + wanted.usd_per_hour_change <= spec.usd_per_hour_max + 1e-6


@pytest.mark.long
@given(situations, wanted_sizes, roles)
def test_the_last_ready_node_is_never_removed(pool_situation: Situation, target: int, role: Role) -> None:
    ready = {member.id for member in pool_situation.instances if member.state is InstanceState.READY}
    wanted = proposal(pool_situation, target, role=role)
    if ready and verdict_of(pool_situation, wanted) is not Verdict.REFUSED:
        assert ready - {victim.id for victim in wanted.victims}


@pytest.mark.long
@given(situations, wanted_sizes)
def test_agents_and_the_rule_are_limited_by_the_mode(pool_situation: Situation, target: int) -> None:
    for role in (Role.AGENT, Role.RULE):
        wanted = proposal(pool_situation, target, role=role)
        if verdict_of(pool_situation, wanted) is Verdict.ALLOWED:
            assert pool_situation.spec.mode in (Mode.ON, Mode.UP_ONLY)
            assert pool_situation.spec.mode is Mode.ON or not wanted.victims


@pytest.mark.long
@given(situations, wanted_sizes)
def test_without_a_fresh_report_only_people_remove_nodes(pool_situation: Situation, target: int) -> None:
    stale = replace(pool_situation, report_age_s=None)
    for role in (Role.AGENT, Role.RULE):
        wanted = proposal(stale, target, role=role)
        assert not wanted.victims or verdict_of(stale, wanted) is Verdict.REFUSED


@pytest.mark.long
@given(situations, wanted_sizes, roles)
def test_verdicts_are_deterministic(pool_situation: Situation, target: int, role: Role) -> None:
    wanted = proposal(pool_situation, target, role=role)
    assert judge(pool_situation, wanted, Limits()) == judge(pool_situation, wanted, Limits())


@pytest.mark.long
@given(situations, wanted_sizes)
def test_an_agent_without_approval_stays_in_the_limits(pool_situation: Situation, target: int) -> None:
    wanted = proposal(pool_situation, target)
    if verdict_of(pool_situation, wanted) is Verdict.ALLOWED and not (
        target <= pool_situation.target and wanted.launches
    ):
        rule = pool_situation.rule_target if pool_situation.rule_target is not None else pool_situation.size
        assert abs(target - rule) <= max(2, 0.25 * rule)


def test_inside_the_limits_an_agent_needs_no_approval() -> None:
    assert verdict_of(situation(8), proposal(situation(8), 10)) is Verdict.ALLOWED
    larger = situation(12, rule_target=10)
    assert verdict_of(larger, proposal(larger, 10)) is Verdict.ALLOWED
    assert verdict_of(situation(8), proposal(situation(8), 6, is_named=True)) is Verdict.ALLOWED


def test_outside_the_limits_a_person_approves() -> None:
    assert codes(situation(8), proposal(situation(8), 11)) == {"distance"}
    assert verdict_of(situation(8), proposal(situation(8), 11)) is Verdict.NEEDS_APPROVAL


def test_the_limits_is_relative_to_the_rules_target() -> None:
    pool_situation = situation(8, rule_target=12)
    assert verdict_of(pool_situation, proposal(pool_situation, 14)) is Verdict.ALLOWED
    assert codes(pool_situation, proposal(pool_situation, 8, role=Role.AGENT)) == {"distance"}


def test_a_fifth_change_within_an_hour_needs_approval() -> None:
    pool_situation = situation(8, changed_at=(NOW - 3500, NOW - 2000, NOW - 1000, NOW - 500))
    assert codes(pool_situation, proposal(pool_situation, 9)) == {"rate"}
    later = replace(pool_situation, now=NOW + 101)
    assert verdict_of(later, proposal(later, 9)) is Verdict.ALLOWED


def test_a_change_waits_until_the_previous_one_takes_effect() -> None:
    pool_situation = situation(8, changed_at=(NOW - 30,))
    assert codes(pool_situation, proposal(pool_situation, 9)) == {"cool_down"}
    assert verdict_of(pool_situation, proposal(pool_situation, 9, role=Role.OPERATOR)) is Verdict.NEEDS_APPROVAL


def test_the_rule_has_no_rate_limit_and_no_cool_down() -> None:
    pool_situation = situation(changed_at=(NOW - 4, NOW - 3, NOW - 2, NOW - 1))
    assert codes(pool_situation, proposal(pool_situation, 9)) == {"rate", "cool_down"}
    assert codes(pool_situation, proposal(pool_situation, 9, role=Role.RULE)) == set()


def test_lost_nodes_are_replaced_without_waiting() -> None:
    pool_situation = situation(5, target=8, rule_target=8, changed_at=(NOW - 3, NOW - 2, NOW - 1.5, NOW - 1))
    assert verdict_of(pool_situation, proposal(pool_situation, 8)) is Verdict.ALLOWED


def test_the_kill_switch_for_agents_stops_agents_only() -> None:
    pool_situation = situation(8, kill=KillScope.AGENTS)
    assert verdict_of(pool_situation, proposal(pool_situation, 9, role=Role.AGENT)) is Verdict.REFUSED
    assert verdict_of(pool_situation, proposal(pool_situation, 9, role=Role.RULE)) is Verdict.ALLOWED
    assert verdict_of(pool_situation, proposal(pool_situation, 9, role=Role.OPERATOR)) is Verdict.ALLOWED


def test_a_hold_stops_removals_only() -> None:
    pool_situation = situation(8, hold_until_at=NOW + 60)
    assert codes(pool_situation, proposal(pool_situation, 7, is_named=True)) == {"hold"}
    assert verdict_of(pool_situation, proposal(pool_situation, 9)) is Verdict.ALLOWED


def test_budgets_stop_launches_and_never_removals() -> None:
    spec = replace(situation().spec, usd_per_hour_max=8.5)
    pool_situation = situation(8, spec=spec)
    assert codes(pool_situation, proposal(pool_situation, 9)) == {"usd_per_hour"}
    assert verdict_of(pool_situation, proposal(pool_situation, 7, role=Role.OPERATOR)) is Verdict.ALLOWED
    day = situation(8, usd_today=95.0, fleet_usd_today=95.0)
    assert codes(day, proposal(day, 9), Limits(usd_per_day_max=100.0)) == {"fleet_usd_per_day"}
    assert codes(day, proposal(day, 9), Limits(usd_per_hour_max=8.0)) == {"fleet_usd_per_hour"}


def test_only_admins_terminate_nodes_without_a_drain() -> None:
    pool_situation = situation(8)
    assert codes(pool_situation, proposal(pool_situation, 7, role=Role.OPERATOR, is_kill=True)) == {"kill"}
    assert verdict_of(pool_situation, proposal(pool_situation, 7, role=Role.ADMIN, is_kill=True)) is Verdict.ALLOWED


def test_instances_outside_the_pool_are_out_of_scope() -> None:
    pool_situation = situation(4)
    assert codes(pool_situation, proposal(pool_situation, 3, victims=(instance(99),), is_named=True)) == {"scope"}


def test_a_pool_outside_its_bounds_may_return_inside() -> None:
    pool_situation = situation(24, rule_target=20)
    assert verdict_of(pool_situation, proposal(pool_situation, 21, role=Role.OPERATOR)) is not Verdict.REFUSED


def test_admins_approve_every_plan_and_operators_those_of_agents_and_the_rule() -> None:
    agent, rule, otto, otto2, admin = (
        Actor(name=name, role=role)
        for name, role in zip("abcde", (Role.AGENT, Role.RULE, Role.OPERATOR, Role.OPERATOR, Role.ADMIN), strict=True)
    )
    assert may_approve(agent, otto, pool="eu")
    assert may_approve(rule, otto, pool="eu")
    assert may_approve(admin, admin, pool="eu")
    assert may_approve(otto, admin, pool="eu")
    assert not may_approve(otto, otto2, pool="eu")
    assert not may_approve(otto, agent, pool="eu")
    assert not may_approve(agent, agent, pool="eu")
    assert not may_approve(agent, rule, pool="eu")
    of_eu, of_us = (Actor(name="ada", role=Role.ADMIN, pool=pool) for pool in ("eu", "us"))
    assert may_approve(agent, of_eu, pool="eu")
    assert not may_approve(agent, of_us, pool="eu")


@pytest.mark.long
@given(situations, wanted_sizes, roles, st.floats(0, 7200))
def test_only_nodes_above_the_rules_target_set_a_hold(
    pool_situation: Situation, target: int, role: Role, delay_s: float
) -> None:
    wanted = proposal(pool_situation, target, role=role)
    found_s = hold_s(pool_situation, wanted, Limits(), launch_delay_s=delay_s)
    rule = pool_situation.rule_target
    bounded_target = (
        None if rule is None else min(max(rule, pool_situation.spec.min_nodes), pool_situation.spec.max_nodes)
    )
    is_undone = (
        bounded_target is not None
        and target > bounded_target
        and pool_situation.spec.mode is Mode.ON
        and role is not Role.RULE
    )
    assert (found_s > 0) == is_undone
    assert found_s <= MAX_HOLD_S
    assert hold_s(pool_situation, wanted, Limits(hold_s=0.0), launch_delay_s=delay_s) == 0.0


@pytest.mark.long
@given(situations, wanted_sizes, roles)
def test_only_people_shrink_a_pool_below_the_rules_target(pool_situation: Situation, target: int, role: Role) -> None:
    wanted = proposal(pool_situation, target, role=role)
    is_undone = "undone" in codes(pool_situation, wanted)
    if is_undone:
        assert pool_situation.spec.mode in AUTOMATIC_MODES
        assert role is Role.AGENT
        assert verdict_of(pool_situation, wanted) is Verdict.REFUSED
    assert is_undone == (
        role not in HUMAN_ROLES and bool(wanted.victims) and nodes_beyond_rule(pool_situation, wanted) < 0
    )
    assert "undone" not in codes(pool_situation, replace(wanted, is_named=True))


def test_a_hold_lasts_until_the_rule_can_measure_the_launched_nodes() -> None:
    pool_situation = situation(6)
    assert hold_s(pool_situation, proposal(pool_situation, 8), Limits(), launch_delay_s=240.0) == 840.0
    grown = replace(situation(8), rule_target=6)
    assert hold_s(grown, proposal(grown, 7), Limits(), launch_delay_s=240.0) == 600.0  # nothing is launched
    assert hold_s(pool_situation, proposal(pool_situation, 6), Limits(), launch_delay_s=240.0) == 0.0


FREE = Limits(unapproved_nodes=100)


def test_a_rejected_or_larger_change_is_refused_to_agents_for_a_while() -> None:
    more = situation(4, rejected=(Rejection(at=NOW - 60.0, target=6),))
    for target, is_refused in ((5, False), (6, True), (9, True), (3, False), (2, False)):
        assert ("rejected" in codes(more, proposal(more, target), FREE)) is is_refused, target
    for role in (Role.RULE, Role.OPERATOR, Role.ADMIN):
        assert "rejected" not in codes(more, proposal(more, 6, role=role), FREE), role
    assert "rejected" in codes(replace(more, now=NOW + 3539.0), proposal(more, 6), FREE)
    assert "rejected" not in codes(replace(more, now=NOW + 3541.0), proposal(more, 6), FREE), (
        "an hour later a proposal is allowed"
    )
    assert "rejected" not in codes(replace(more, target=6), proposal(more, 6), FREE), "lost nodes are replaced"
    fewer = situation(4, rejected=(Rejection(at=NOW - 60.0, target=2),))
    for target, is_refused in ((3, False), (2, True), (1, True), (5, False)):
        assert ("rejected" in codes(fewer, proposal(fewer, target), FREE)) is is_refused, target


def test_nodes_of_a_rejected_plan_are_not_retired_by_agents() -> None:
    pool_situation = situation(6, rejected=(Rejection(at=NOW - 60.0, target=5, retire=(LaunchId("L1"),)),))

    def names(*ordinals: int, is_named: bool = True) -> ProposedChange:
        victims = tuple(instance(ordinal) for ordinal in ordinals)
        return proposal(pool_situation, 6 - len(victims), victims=victims, is_named=is_named)

    assert "rejected" in codes(pool_situation, names(1), FREE)
    assert "rejected" in codes(pool_situation, names(1, 2), FREE)
    assert "rejected" not in codes(pool_situation, names(2), FREE)
    assert "rejected" in codes(pool_situation, names(1, is_named=False), FREE)
    assert "rejected" in codes(pool_situation, names(2, is_named=False), FREE), "the size is the rejected one"


def test_a_rejected_size_is_not_reached_by_naming_nodes() -> None:
    rejection = Rejection(at=NOW - 60.0, target=4, victims=(LaunchId("L0"), LaunchId("L1")))
    pool_situation = situation(6, rejected=(rejection,))
    for ordinals, is_refused in (((0, 1), True), ((2, 3), True), ((0, 1, 2), True), ((2,), False)):
        victims = tuple(instance(ordinal) for ordinal in ordinals)
        change = proposal(pool_situation, 6 - len(victims), victims=victims, is_named=True)
        assert ("rejected" in codes(pool_situation, change, FREE)) is is_refused, ordinals
    grown = situation(6, rejected=(Rejection(at=NOW - 60.0, target=9),))
    named = proposal(grown, 5, victims=(instance(1),), is_named=True)
    assert "rejected" not in codes(grown, named, FREE), "a rejected scale-up concerns no retirement"


def on(mode: Mode = Mode.ON, **bounds: Any) -> PoolSpec:
    return replace(situation().spec, mode=mode, **bounds)


RECENT = (NOW - 3550, NOW - 3500, NOW - 2000, NOW - 1000, NOW - 500)
REFUSED, NEEDS_APPROVAL = Verdict.REFUSED, Verdict.NEEDS_APPROVAL
PERSON = Role.OPERATOR


@pytest.mark.parametrize(
    ("pool_situation", "target", "changes", "limits", "expected"),
    [
        (situation(spec=on(Mode.OFF)), 9, {}, {}, [("mode", REFUSED, {})]),
        (situation(spec=on(Mode.ADVISE)), 9, {}, {}, [("mode", NEEDS_APPROVAL, {})]),
        (situation(spec=on(Mode.UP_ONLY)), 7, {"is_named": True}, {}, [("mode", NEEDS_APPROVAL, {})]),
        (situation(spec=on(Mode.UP_ONLY)), 9, {}, {}, []),
        (situation(20), 21, {}, {}, [("max_nodes", REFUSED, {"target": 21, "limit": 20})]),
        (situation(24, rule_target=20), 24, {}, {}, [("max_nodes", REFUSED, {"target": 24, "limit": 20})]),
        (
            situation(4, spec=on(min_nodes=3)),
            2,
            {"role": PERSON},
            {},
            [("min_nodes", REFUSED, {"target": 2, "limit": 3})],
        ),
        (situation(4, spec=on(min_nodes=3)), 3, {"role": PERSON}, {}, []),
        (situation(2, spec=on(min_nodes=3)), 2, {}, {}, [("min_nodes", REFUSED, {"target": 2, "limit": 3})]),
        (situation(1, spec=on(min_nodes=3)), 2, {}, {}, []),
        (situation(breaker_until=NOW + 30), 9, {}, {}, [("breaker", REFUSED, {"left_s": 30})]),
        (situation(breaker_until=NOW + 30), 7, {"is_named": True}, {}, []),
        (situation(breaker_until=NOW), 9, {}, {}, []),
        (
            situation(spec=on(usd_per_hour_max=8.25)),
            9,
            {"usd_per_hour_change": 0.5},
            {},
            [("usd_per_hour", REFUSED, {"usd_per_hour": 8.5, "limit": 8.25})],
        ),
        (situation(spec=on(usd_per_hour_max=9.0)), 9, {}, {}, []),
        (
            situation(fleet_usd_per_hour=20.0),
            9,
            {},
            {"usd_per_hour_max": 20.5},
            [("fleet_usd_per_hour", REFUSED, {"usd_per_hour": 21, "limit": 20.5})],
        ),
        (
            situation(spec=on(usd_per_day_max=98.0), usd_today=90.0),
            9,
            {},
            {},
            [("usd_per_day", REFUSED, {"usd": 99, "limit": 98})],
        ),
        (situation(spec=on(usd_per_day_max=99.0), usd_today=90.0), 9, {}, {}, []),
        (
            situation(fleet_usd_today=50.0, fleet_usd_per_hour=10.0),
            9,
            {},
            {"usd_per_day_max": 60.0},
            [("fleet_usd_per_day", REFUSED, {"usd": 61, "limit": 60})],
        ),
        (situation(changed_at=RECENT), 9, {}, {}, [("rate", REFUSED, {"applied": 5, "limit": 4, "left_s": 100})]),
        (
            situation(changed_at=RECENT),
            9,
            {"role": PERSON},
            {},
            [("rate", NEEDS_APPROVAL, {"applied": 5, "limit": 4, "left_s": 100})],
        ),
        (situation(changed_at=(NOW - 3600, *RECENT[2:])), 9, {}, {}, []),
        (
            situation(changed_at=(NOW - 300, NOW - 100, NOW - 20)),
            8,
            {},
            {},
            [("cool_down", REFUSED, {"left_s": 40, "cool_down_s": 60})],
        ),
        (situation(changed_at=(NOW - 60,)), 9, {}, {}, []),
        (situation(7, target=8, rule_target=8, changed_at=(NOW - 1,)), 8, {}, {}, []),
        (
            situation(rejected=(Rejection(at=NOW - 60, target=9), Rejection(at=NOW - 100, target=9))),
            9,
            {},
            {},
            [("rejected", REFUSED, {"left_s": 3540})],
        ),
        (situation(rejected=(Rejection(at=NOW - 3600, target=9),)), 9, {}, {}, []),
        (
            situation(hold_until_at=NOW + 59.98765),
            6,
            {"is_named": True},
            {},
            [("hold", REFUSED, {"left_s": 59.988, "victims": 2})],
        ),
        (situation(hold_until_at=NOW), 6, {"is_named": True}, {}, []),
        (situation(1, rule_target=0), 0, {"role": PERSON}, {}, [("last_ready", REFUSED, {"ready": 1})]),
        (situation(1, rule_target=0), 0, {"role": Role.ADMIN, "is_kill": True}, {}, []),
        (
            situation(report_age_s=100.0),
            7,
            {"is_named": True},
            {},
            [("stale", REFUSED, {"report_age_s": 100, "limit": 90})],
        ),
        (situation(report_age_s=None), 7, {"is_named": True}, {}, [("stale", REFUSED, {})]),
        (situation(report_age_s=90.0), 7, {"is_named": True}, {}, []),
        (situation(report_age_s=100.0), 7, {"role": PERSON}, {}, []),
        (situation(), 7, {}, {}, [("undone", REFUSED, {"target": 7, "rule_target": 8})]),
        (situation(), 11, {}, {}, [("distance", NEEDS_APPROVAL, {"target": 11, "rule_target": 8, "limit": 2})]),
        (
            situation(rule_target=None),
            11,
            {},
            {},
            [("distance", NEEDS_APPROVAL, {"target": 11, "rule_target": 8, "limit": 2})],
        ),
        (situation(16), 12, {"role": PERSON}, {}, []),
        (situation(), 7, {"role": PERSON, "is_kill": True}, {}, [("kill", REFUSED, {})]),
    ],
)
def test_each_finding_has_its_verdict_and_its_figures(
    pool_situation: Situation,
    target: int,
    changes: dict[str, Any],
    limits: dict[str, Any],
    expected: list[tuple[str, Verdict, dict[str, float]]],
) -> None:
    findings = judge(pool_situation, proposal(pool_situation, target, **changes), Limits(**limits))
    assert [(each.code.value, each.verdict, each.numbers) for each in findings] == expected


def test_manually_joined_nodes_count_towards_the_size() -> None:
    assert situation(2, unmanaged=3).size == 5
