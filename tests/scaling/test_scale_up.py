"""Orders at the edges of the rule: half of the demand, waits, headroom, and actions before."""

from typing import Any

import pytest

from astraflow.contract.fleet.recommendations import PoolRecommendation, Reason
from astraflow.scaling.measurement.signals import Signals
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerState
from tests.scaling.make import AT, POOL, measured, spec


def decided(inputs: Signals, *, options: dict[str, Any] | None = None, **state: Any) -> PoolRecommendation:
    """Returns the decision on a pool that has had its present nodes for long."""
    count = len(inputs.nodes.ids)
    values: dict[str, Any] = {"targets": {POOL: count}, "present_nodes": {POOL: count}, "acted_at": 0.0}
    (advice,) = decide(inputs, spec(**options or {}), SizerState(**values | state)).recommendations
    return advice


@pytest.mark.parametrize(("count", "reason"), [(7, Reason.FAR_BELOW), (8, Reason.CONFIRMING_UP)])
def test_only_less_than_half_of_the_demand_needs_no_confirmation(count: int, reason: Reason) -> None:
    assert decided(measured(count)).reasons == (reason,)


@pytest.mark.parametrize(
    ("count", "needed", "wait", "is_short"),
    [
        (16, 16.0, 0.08, False),
        (16, 16.0, 0.09, True),
        (31, 32.0, 0.02, False),
        (31, 32.0, 0.03, True),
    ],
)
def test_a_wait_above_the_limit_confirms_a_small_shortage(
    count: int, needed: float, wait: float, is_short: bool
) -> None:
    reasons = decided(measured(count, needed=needed, wait_share_300_s=wait)).reasons
    assert reasons == ((Reason.CONFIRMING_UP,) if is_short else (Reason.INSIDE_BAND,))


@pytest.mark.parametrize(("needed", "is_short"), [(16.25, False), (16.26, True)])
def test_a_quarter_of_a_node_is_not_ordered(needed: float, is_short: bool) -> None:
    inputs = measured(16, needed=needed, wait_share_300_s=0.2)
    advice = decided(inputs, options={"headroom": 0.0, "sustain_up_ticks": 1})
    assert (advice.target, Reason.TRAINER_WAITS in advice.reasons) == ((17, True) if is_short else (16, False))


@pytest.mark.parametrize(("ago_s", "reason"), [(600.0, Reason.INSIDE_BAND), (600.5, Reason.CONFIRMING_UP)])
def test_after_a_scale_down_a_shortage_must_exceed_more_noise(ago_s: float, reason: Reason) -> None:
    assert decided(measured(15), scale_downs=(AT - ago_s,)).reasons == (reason,)


@pytest.mark.parametrize(("ago_s", "target"), [(600.0, 18), (599.5, 7)])
def test_orders_count_for_ten_minutes(ago_s: float, target: int) -> None:
    assert decided(measured(7), scale_ups=(AT - ago_s, AT - 1)).target == target


@pytest.mark.parametrize(("compute_s", "ratios"), [(160.0, 5), (161.0, 1), (96.0, 5), (95.0, 1)])
def test_earlier_ratios_are_left_out_once_steps_differ_by_more_than_a_quarter(compute_s: float, ratios: int) -> None:
    state = SizerState(targets={POOL: 20}, present_nodes={POOL: 20}, ratios=(1.25,) * 5, compute_s=128.0)
    after = decide(measured(20, compute_s=(compute_s,) * 6), spec(), state).state
    assert (len(after.ratios), after.compute_s) == (ratios, 128.0 if ratios == 5 else compute_s)


def test_an_order_begins_the_confirmation_again() -> None:
    state = SizerState(targets={POOL: 7}, present_nodes={POOL: 7}, low_ticks=5, high_ticks=3, is_settling=True)
    after = decide(measured(7), spec(), state).state
    assert (after.low_ticks, after.high_ticks, after.is_settling) == (0, 0, False)
    assert (after.scale_ups, after.acted_at, after.ratios) == ((AT,), AT, (18 / 16,))


@pytest.mark.parametrize(
    ("wait", "passed_s", "before", "after"),
    [
        (0.2, 300.0, 1.0, 1.1),
        (0.2, 299.0, 1.0, 1.0),
        (0.08, 300.0, 1.0, 1.0),
        (0.2, 300.0, 1.4375, 1.5),  # the largest
        (0.02, 300.0, 1.25, 1.25),
        (0.01, 300.0, 1.25, 1.25 * 0.5 ** (30 / 10_400)),
        (0.01, 300.0, 1.0, 1.0),
    ],
)
def test_a_wait_in_spite_of_enough_nodes_raises_the_assumed_demand(
    wait: float, passed_s: float, before: float, after: float
) -> None:
    count = round(16 * before)
    state = SizerState(targets={POOL: count}, present_nodes={POOL: count}, trim=before, acted_at=AT - passed_s)
    result = decide(measured(count, wait_share_300_s=wait), spec(headroom=0.0), state)
    assert result.state.trim == pytest.approx(after)
    assert (Reason.TRIMMED in result.recommendations[0].reasons) == (after > before)
