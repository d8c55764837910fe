"""Recommendations respect the fleet's constraints on its pools, and name them."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.recommendations import (
    FleetConstraints,
    LimitInEffect,
    Mode,
    PoolConstraints,
    PoolRecommendation,
    Reason,
)
from astraflow.contract.ids import PoolId
from astraflow.contract.record_causes import WORDS
from astraflow.contract.records import render
from astraflow.scaling.measurement.fleet_constraints import limits_of, signals_with_constraints, spec_with_constraints
from astraflow.scaling.measurement.signals import Signals
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerState
from tests.errors import raises_code
from tests.scaling.make import POOL, nodes, signals, spec

TERMS = PoolConstraints(
    pool=POOL, mode=Mode.ON, min_nodes=1, max_nodes=100, price_per_hour=1.0, launch_delay_s=300.0, dollars_per_hour=15.0
)


def fleet(*, whole: dict[str, Any] | None = None, **pool: Any) -> FleetConstraints:
    return FleetConstraints(pools=(replace(TERMS, **pool),), **(whole or {}))


def advised(inputs: Signals, terms: FleetConstraints, ticks: int) -> PoolRecommendation:
    """Returns the recommendation after that many ticks of 30 s."""
    sizer_spec, state = spec_with_constraints(spec(pool={"max_nodes": 1000}), terms), SizerState()
    for tick in range(ticks):
        verdict = decide(
            signals_with_constraints(replace(inputs, at=inputs.at + 30.0 * tick), terms), sizer_spec, state
        )
        state = verdict.state
    return verdict.recommendations[0]


@pytest.mark.parametrize(
    ("terms", "target", "cap"),
    [
        (fleet(max_nodes=18), 18, LimitInEffect.MAX_NODES),
        (fleet(dollars_per_hour_max=17.0), 17, LimitInEffect.DOLLARS_PER_HOUR),
        (fleet(dollars_per_day_max=40.0, dollars_today=24.0), 16, LimitInEffect.DOLLARS_PER_DAY),
        (fleet(price_per_hour=0.5, dollars_per_hour_max=10.0), 20, LimitInEffect.DOLLARS_PER_HOUR),
        (fleet(nodes=15, price_per_hour=4.0, dollars_per_hour_max=20.0), 16, LimitInEffect.DOLLARS_PER_HOUR),
        (fleet(nodes=15, price_per_hour=4.0, whole={"dollars_per_hour_max": 20.0}), 16, LimitInEffect.DOLLARS_PER_HOUR),
        (fleet(nodes=15, price_per_hour=0.5, dollars_per_hour_max=14.0), 14, LimitInEffect.DOLLARS_PER_HOUR),
        (fleet(whole={"dollars_per_hour_max": 19.0}), 19, LimitInEffect.DOLLARS_PER_HOUR),
        (fleet(whole={"dollars_per_day_max": 10.0, "dollars_today": 10.0}), 1, LimitInEffect.DOLLARS_PER_DAY),
        (fleet(whole={"is_kill_switch_on": True}), 15, LimitInEffect.KILL_SWITCH),
        (fleet(failures=3, breaker_until=40_000.0), 15, LimitInEffect.BREAKER),
    ],
)
def test_a_fleet_limit_caps_the_recommendation_and_is_reported(
    terms: FleetConstraints, target: int, cap: LimitInEffect
) -> None:
    advice = advised(signals(nodes(15)), terms, 2)
    assert (advice.target, advice.limited_by) == (target, (cap,))
    assert WORDS[cap.value] in render(advice.change)


def test_a_pool_with_a_hold_does_not_shrink_but_can_grow() -> None:
    advice = advised(signals(nodes(40)), fleet(is_held=True), 20)
    assert (advice.target, advice.limited_by) == (40, (LimitInEffect.HOLD,))
    assert advised(signals(nodes(40)), fleet(), 20).target < 40
    assert advised(signals(nodes(40)), fleet(is_held=True, max_nodes=30), 20).target == 40
    assert advised(signals(nodes(15)), fleet(is_held=True), 2).target == 22


def test_a_spent_daily_budget_leaves_only_warm_nodes_without_a_hold() -> None:
    spent: dict[str, Any] = {"dollars_per_day_max": 24.0, "dollars_today": 24.0}
    assert advised(signals(nodes(15)), fleet(**spent), 2).target == 1
    assert advised(signals(nodes(15)), fleet(**spent, is_held=True), 2).target == 15


def test_fleet_constraints_override_only_their_settings() -> None:
    configured = Spec(
        options=SizerOptions(max_dollars_per_hour=5.0, headroom=0.1),
        pools={POOL: PoolOptions(max_nodes=3, warm_nodes=0, quota=7), PoolId("other"): PoolOptions(max_nodes=2)},
    )
    sizer_spec = spec_with_constraints(configured, fleet(mode=Mode.UP_ONLY, launch_delay_s=80.0))
    assert sizer_spec.pools[POOL] == PoolOptions(
        mode=Mode.UP_ONLY,
        min_nodes=1,
        max_nodes=100,
        warm_nodes=0,
        quota=7,
        price_per_hour=1.0,
        launch_delay_s=80.0,
    )
    assert sizer_spec.pools[PoolId("other")] == configured.pools[PoolId("other")]
    assert sizer_spec.options == configured.options


@pytest.mark.parametrize("pool", [{"launch_delay_s": 0.0}, {"min_nodes": 101}, {"price_per_hour": float("nan")}])
def test_invalid_fleet_constraints_are_refused(pool: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "config.invalid", "pool gpu"):
        spec_with_constraints(spec(), fleet(**pool))


def test_only_changed_limits_are_urgent() -> None:
    assert limits_of(fleet()) == limits_of(fleet(price_per_hour=2.0, dollars_today=9.0, launch_delay_s=7.0))
    for other in (
        fleet(is_held=True),
        fleet(max_nodes=9),
        fleet(mode=Mode.OFF),
        fleet(whole={"is_kill_switch_on": True}),
    ):
        assert limits_of(other) != limits_of(fleet())


@pytest.mark.parametrize(("delay_s", "tick_s"), [(2.0, 5.0), (80.0, 20.0), (300.0, 30.0), (1500.0, 30.0)])
def test_the_interval_of_decisions_follows_the_launch_delay(delay_s: float, tick_s: float) -> None:
    assert spec(pool={"launch_delay_s": delay_s}).tick_s == pytest.approx(tick_s)
    assert spec(pool={"launch_delay_s": delay_s}, tick_s=20.0).tick_s == 20.0
    assert Spec().tick_s == 30.0


def test_the_kill_switch_is_the_first_reason() -> None:
    assert advised(signals(nodes(15)), fleet(whole={"is_kill_switch_on": True}), 2).reasons[0] is Reason.SWITCHED_OFF
