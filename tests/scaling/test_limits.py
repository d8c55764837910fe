"""Failing pools, bounds and budgets in the decisions about one and two pools."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.fleet.recommendations import LimitInEffect, Mode, Reason
from astraflow.scaling.measurement.signals import LaunchSignals
from astraflow.scaling.options import PoolBudget
from tests.scaling.make import AT, FIRST, SECOND, decided, targets, two_pools


@pytest.mark.parametrize(
    ("since_s", "first", "expected"),
    [
        (200.0, {}, [10, 4]),  # twice the usual delay, exactly
        (200.5, {}, [6, 8]),
        (100.5, {"is_spot": True}, [6, 8]),
        (100.0, {"is_spot": True}, [10, 4]),
    ],
)
def test_orders_that_do_not_arrive_go_to_another_pool(
    since_s: float, first: dict[str, Any], expected: list[int]
) -> None:
    result = decided(
        two_pools(6, 4, needed=14.0),
        first=first,
        options={"sustain_up_ticks": 1, "headroom": 0.0},
        targets={FIRST: 10, SECOND: 4},
        missing_since={FIRST: AT - since_s},
    )
    has_failed = expected == [6, 8]
    assert targets(result) == expected
    assert (Reason.LAUNCHES_FAILING in result.recommendations[0].reasons) == has_failed
    assert result.state.breaker_until == ({FIRST: AT + 600.0} if has_failed else {})


@pytest.mark.parametrize(
    "blocked",
    [{"second": {"mode": Mode.OFF}}, {"spec": {"is_kill_switch_on": True}}, {"first": {"mode": Mode.OFF}}],
    ids=str,
)
def test_orders_are_kept_where_no_other_pool_can_take_them(blocked: dict[str, Any]) -> None:
    ordered = {FIRST: 10, SECOND: 4}
    result = decided(two_pools(6, 4), targets=ordered, missing_since={FIRST: AT - 500.0}, **blocked)
    assert Reason.LAUNCHES_FAILING not in result.recommendations[0].reasons
    assert targets(result)[0] == (6 if blocked.get("first") else 10)


def test_a_failing_pool_keeps_its_minimum_and_the_nodes_that_orders_were_to_replace() -> None:
    result = decided(
        two_pools(6, 4),
        first={"min_nodes": 8},
        targets={FIRST: 10, SECOND: 4},
        missing_since={FIRST: AT - 500.0},
        being_replaced=frozenset({"node-0"}),
    )
    assert targets(result)[0] == 8
    assert result.state.being_replaced == frozenset()


@pytest.mark.parametrize(("until_s", "is_kept"), [(-4000.0, False), (-3999.0, True), (1.0, True)])
def test_the_end_of_a_circuit_breaker_is_kept_for_an_hour(until_s: float, is_kept: bool) -> None:
    result = decided(two_pools(8, 8), breaker_until={FIRST: AT + until_s})
    assert (FIRST in result.state.breaker_until) == is_kept


@pytest.mark.parametrize(
    ("more", "is_open"),
    [
        ({}, True),  # the other pool takes the orders
        ({"second": {"mode": Mode.OFF}}, False),
        ({"second": {"mode": Mode.OFF}, "failures": 2}, False),
        ({"second": {"mode": Mode.OFF}, "failures": 3}, True),
        ({"second": {"mode": Mode.OFF}, "targets": {FIRST: 9, SECOND: 8}}, True),
    ],
    ids=str,
)
def test_the_only_pool_takes_orders_again_once_all_have_arrived(more: dict[str, Any], is_open: bool) -> None:
    launches = {FIRST: LaunchSignals(failures=more.get("failures", 0), failed_at=AT - 700.0)}
    changes = {name: value for name, value in more.items() if name != "failures"}
    result = decided(two_pools(8, 8, launches=launches), breaker_until={FIRST: AT + 100.0}, **changes)
    assert (FIRST in result.state.breaker_until) == is_open


@pytest.mark.parametrize(
    ("first", "options", "spec", "limit"),
    [
        ({"mode": Mode.UP_ONLY}, {}, {}, LimitInEffect.MODE),
        ({}, {}, {"held_pools": frozenset({FIRST})}, LimitInEffect.HOLD),
    ],
)
def test_a_pool_that_may_not_shrink_keeps_its_target_during_a_long_pause(
    first: dict[str, Any], options: dict[str, Any], spec: dict[str, Any], limit: LimitInEffect
) -> None:
    result = decided(two_pools(8, 8, paused_s=1200.0), first=first, options=options, spec=spec)
    assert targets(result) == [8, 1]
    assert result.recommendations[0].reasons == (Reason.IDLE,)
    paused = decided(two_pools(8, 8, paused_s=1199.0), first=first, options=options, spec=spec)
    assert (targets(paused), paused.recommendations[0].reasons) == ([8, 8], (Reason.PAUSED,))


def test_bounds_apply_at_any_time_but_retire_no_node_of_a_held_pool() -> None:
    idle = two_pools(8, 8, paused_s=0.0)
    result = decided(idle, first={"max_nodes": 5}, second={"min_nodes": 12})
    assert (targets(result), Reason.POOL_BOUNDS in result.recommendations[0].reasons) == ([5, 12], True)
    held = {"held_pools": frozenset({FIRST, SECOND})}
    assert targets(decided(idle, first={"max_nodes": 5}, second={"min_nodes": 12}, spec=held)) == [8, 12]
    unchanged = decided(idle, first={"max_nodes": 8, "min_nodes": 8})
    assert Reason.POOL_BOUNDS not in unchanged.recommendations[0].reasons


@pytest.mark.parametrize(
    ("options", "spec", "expected", "limit"),
    [
        ({"max_dollars_per_hour": 24.0}, {}, [8, 8], ()),  # 8 at one dollar, 8 at two
        ({"max_dollars_per_hour": 23.0}, {}, [8, 7], (LimitInEffect.DOLLARS_PER_HOUR,)),
        ({"max_dollars_per_hour": 9.0}, {}, [7, 1], (LimitInEffect.DOLLARS_PER_HOUR,)),
        ({"max_dollars_per_hour": 1.0}, {}, [1, 1], (LimitInEffect.DOLLARS_PER_HOUR,)),  # the warm nodes remain
        ({"max_dollars_per_day": 50.0}, {}, [1, 1], (LimitInEffect.DOLLARS_PER_DAY,)),  # spent, exactly
        ({"max_dollars_per_day": 51.0}, {}, [8, 8], ()),
        ({}, {"money": {FIRST: PoolBudget(dollars_per_hour=8.0)}}, [8, 8], ()),
        ({}, {"money": {FIRST: PoolBudget(dollars_per_hour=7.5)}}, [7, 8], (LimitInEffect.DOLLARS_PER_HOUR,)),
        ({}, {"money": {FIRST: PoolBudget(dollars_left_today=0.0)}}, [1, 8], (LimitInEffect.DOLLARS_PER_DAY,)),
        ({}, {"money": {FIRST: PoolBudget(dollars_left_today=0.5)}}, [8, 8], ()),
    ],
    ids=str,
)
def test_nodes_above_a_budget_are_retired_most_expensive_first(
    options: dict[str, Any], spec: dict[str, Any], expected: list[int], limit: tuple[LimitInEffect, ...]
) -> None:
    result = decided(two_pools(8, 8, paused_s=0.0, dollars_today=50.0), options=options, spec=spec)
    assert targets(result) == expected
    assert result.recommendations[0].limited_by == limit


def test_budgets_retire_nothing_on_stale_measurements_or_under_the_kill_switch() -> None:
    inputs = two_pools(8, 8)
    silent = replace(inputs, nodes=replace(inputs.nodes, silent_s=np.full(16, 1000.0)))
    assert targets(decided(silent, options={"max_dollars_per_hour": 9.0})) == [8, 8]
    stopped = {"is_kill_switch_on": True}
    assert targets(decided(inputs, options={"max_dollars_per_hour": 9.0}, spec=stopped)) == [8, 8]


@pytest.mark.parametrize(
    ("silent", "silent_s", "is_stale"), [(3, 91.0, False), (4, 90.0, False), (4, 91.0, True), (4, float("nan"), True)]
)
def test_measurements_are_stale_when_more_than_a_fifth_of_the_nodes_is_silent(
    silent: int, silent_s: float, is_stale: bool
) -> None:
    inputs = two_pools(8, 8)
    table = replace(inputs.nodes, silent_s=np.array([silent_s] * silent + [0.0] * (16 - silent)))
    result = decided(replace(inputs, nodes=table), options={"tick_s": 30.0})
    assert (result.recommendations[0].reasons[0] is Reason.STALE_INPUT) == is_stale


@pytest.mark.parametrize(
    ("compute_s", "age_s", "wait", "is_stale"),
    [
        (100.0, 600.0, 0.0, False),
        (100.0, 601.0, 0.0, True),
        (128.0, 640.0, 0.0, False),  # five usual steps
        (128.0, 641.0, 0.0, True),
        (128.0, 641.0, 0.5, False),  # a trainer that waits makes no steps
        (128.0, 641.0, 0.49, True),
    ],
)
def test_measurements_are_stale_after_five_steps_and_ten_minutes_without_one(
    compute_s: float, age_s: float, wait: float, is_stale: bool
) -> None:
    inputs = two_pools(8, 8)
    (stream,) = inputs.streams
    late = replace(stream, compute_s=(compute_s,) * 6, step_age_s=age_s, wait_share_300_s=wait)
    result = decided(replace(inputs, streams=(late,)))
    assert (result.recommendations[0].reasons[0] is Reason.STALE_INPUT) == is_stale
