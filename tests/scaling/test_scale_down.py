"""Retirements at the edges of the rule: surplus, bounds of pools, waits, and actions before."""

from typing import Any

import pytest

from astraflow.contract.fleet.recommendations import LimitInEffect, PoolRecommendation, Reason
from astraflow.scaling.measurement.signals import Signals
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerResult, SizerState
from tests.scaling.make import AT, POOL, measured, spec


def result_of(
    inputs: Signals, *, pool: dict[str, Any] | None = None, options: dict[str, Any] | None = None, **state: Any
) -> SizerResult:
    """Decides on a surplus that has lasted, where one action may retire all of it."""
    count = len(inputs.nodes.ids)
    values: dict[str, Any] = {
        "targets": {POOL: count},
        "present_nodes": {POOL: count},
        "acted_at": 0.0,
        "high_ticks": 9,
    }
    values |= {"ratios": (count / 16,) * 5, "compute_s": 128.0}
    all_at_once: dict[str, Any] = {"headroom": 0.0, "scale_down_share": 1.0}
    return decide(inputs, spec(pool=pool, **all_at_once | (options or {})), SizerState(**values | state))


def decided(inputs: Signals, **more: Any) -> PoolRecommendation:
    return result_of(inputs, **more).recommendations[0]


@pytest.mark.parametrize(
    ("is_settling", "share", "target"), [(False, 1.0, 28), (True, 1.0, 16), (True, 0.25, 30), (True, 0.01, 39)]
)
def test_half_of_the_surplus_is_retired_and_all_of_it_soon_after(is_settling: bool, share: float, target: int) -> None:
    advice = decided(measured(40), options={"scale_down_share": share}, is_settling=is_settling)
    assert (advice.target, len(advice.victims), advice.reasons) == (target, 40 - target, (Reason.ABOVE_BAND,))


def test_a_retirement_begins_the_confirmation_again() -> None:
    after = result_of(measured(40), ratios=(2.5,)).state
    assert (after.high_ticks, after.is_settling, after.ratios) == (0, True, ())
    assert (after.scale_downs, after.acted_at) == ((AT,), AT)


@pytest.mark.parametrize(
    ("bounds", "options", "target"), [({"min_nodes": 30}, {}, 30), ({}, {"base_on_demand": 35}, 35)]
)
def test_retirements_end_at_the_minimum(bounds: dict[str, Any], options: dict[str, Any], target: int) -> None:
    advice = decided(measured(40), pool=bounds, options=options, is_settling=True)
    assert (advice.target, len(advice.victims), advice.reasons) == (target, 40 - target, (Reason.ABOVE_BAND,))


def test_spot_nodes_do_not_count_for_the_minimum_of_on_demand_nodes() -> None:
    advice = decided(measured(40), pool={"is_spot": True}, options={"base_on_demand": 35}, is_settling=True)
    assert advice.target == 16


@pytest.mark.parametrize(("wait", "target"), [(0.019, 28), (0.02, 40)])
def test_a_surplus_is_retired_only_below_the_lower_limit_of_waits(wait: float, target: int) -> None:
    advice = decided(measured(40, wait_share_600_s=wait))
    assert (advice.target, Reason.TRAINER_WAITED_RECENTLY in advice.reasons) == (target, target == 40)


@pytest.mark.parametrize(
    ("before", "is_limited"),
    [
        ({"scale_downs": (AT - 599.0,)}, True),
        ({"scale_downs": (AT - 600.0,)}, False),
        ({"scale_ups": (AT - 600.0,)}, True),
        ({"scale_ups": (AT - 601.0,)}, False),
    ],
    ids=str,
)
def test_no_retirement_follows_an_action_within_ten_minutes(before: dict[str, Any], is_limited: bool) -> None:
    advice = decided(measured(40), **before)
    assert (advice.target, advice.limited_by) == ((40, (LimitInEffect.ACTION_BUDGET,)) if is_limited else (28, ()))


def test_the_last_node_that_the_load_needs_is_kept() -> None:
    advice = decided(measured(2, needed=1.25), options={"band_high": 1.01}, is_settling=True, ratios=(4.0,) * 5)
    assert (advice.target, advice.reasons) == (2, (Reason.ABOVE_BAND, Reason.NEEDED_FOR_LOAD))


@pytest.mark.parametrize(("passed_s", "is_settling"), [(1800.0, True), (1801.0, False)])
def test_after_half_an_hour_only_a_large_surplus_is_retired(passed_s: float, is_settling: bool) -> None:
    after = result_of(measured(17), is_settling=True, acted_at=AT - passed_s, ratios=(1.0,) * 5).state
    assert after.is_settling == is_settling


@pytest.mark.parametrize(("ratio", "before", "after"), [(2.5, 3, 4), (1.0, 3, 2), (1.0, 0, 0)])
def test_ticks_above_the_band_are_counted_up_and_down(ratio: float, before: int, after: int) -> None:
    state = result_of(measured(round(16 * ratio)), ratios=(ratio,) * 5, high_ticks=before).state
    assert state.high_ticks == after
