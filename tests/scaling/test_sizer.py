"""Single decisions: the rule's targets and reasons for one set of signals after the other."""

from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.fleet.recommendations import (
    RECOMMENDATION_INPUTS,
    LimitInEffect,
    Mode,
    PoolRecommendation,
    Reason,
)
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.records import render
from astraflow.scaling.measurement.signals import LaunchSignals, NodeKind, Signals
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerState
from tests.scaling.make import POOL, RATE, nodes, signals, spec, stream


def ticks(
    inputs: Signals, count: int, sizer_spec: Spec, state: SizerState | None = None
) -> tuple[PoolRecommendation, SizerState]:
    """Decides on the same signals for that many ticks."""
    state = state or SizerState()
    for tick in range(count):
        verdict = decide(replace(inputs, at=inputs.at + 30.0 * tick), sizer_spec, state)
        state = verdict.state
    return verdict.recommendations[0], state


def test_a_pool_inside_the_band_keeps_its_target() -> None:
    advice, _ = ticks(signals(nodes(22)), 20, spec())
    assert (advice.target, advice.reasons) == (22, (Reason.INSIDE_BAND,))
    assert advice.band_low == pytest.approx(20, abs=0.3)
    assert advice.band_high == pytest.approx(25, abs=0.5)
    stays = "stay at 22 nodes, because capacity is inside the band of 1.00 to 1.25 of what trainers need"
    assert render(advice.change) == stays


def test_a_shortage_is_confirmed_for_one_tick_and_then_corrected_completely() -> None:
    first, state = ticks(signals(nodes(15)), 1, spec())
    assert (first.target, first.reasons) == (15, (Reason.CONFIRMING_UP,))
    second, state = ticks(signals(nodes(15), at=30_030.0), 1, spec(), state)
    assert (second.target, second.reasons) == (22, (Reason.BELOW_BAND,))
    # Requested nodes count: while they start, no further nodes are requested.
    later, _ = ticks(signals(nodes(15, pending=7), at=30_060.0), 8, spec(), state)
    assert later.target == 22


def test_a_capacity_below_half_the_demand_is_corrected_immediately() -> None:
    advice, _ = ticks(signals(nodes(8)), 1, spec())
    assert (advice.target, advice.reasons[0]) == (22, Reason.FAR_BELOW)


def short(factor: float) -> Signals:
    """Returns 22 nodes that in the last three minutes finished that share of their usual groups."""
    table = nodes(22)
    return signals(replace(table, groups_short=table.groups_short * factor))


def test_a_low_short_window_is_confirmed_before_a_launch() -> None:
    _, state = ticks(signals(nodes(22)), 10, spec())
    low, state = ticks(replace(short(0.4), at=30_300.0), 1, spec(), state)
    assert low.inputs["ratio"] == pytest.approx(0.44, abs=0.01)
    assert (low.target, low.reasons) == (22, (Reason.CONFIRMING_UP,))
    chance, _ = ticks(signals(nodes(22), at=30_330.0), 10, spec(), state)
    assert (chance.target, chance.reasons) == (22, (Reason.INSIDE_BAND,)), "a single low count is noise"
    twice, _ = ticks(replace(short(0.4), at=30_330.0), 1, spec(), state)
    assert (twice.target, twice.reasons[0]) == (54, Reason.FAR_BELOW)


def test_requested_nodes_count_as_capacity_until_their_launch_times_out() -> None:
    _, state = ticks(signals(nodes(15)), 2, spec())
    waiting, state = ticks(signals(nodes(15), at=30_060.0), 15, spec(), state)
    assert waiting.inputs["capacity_ordered_groups_per_s"] == pytest.approx(22 * RATE, rel=0.02)
    late, _ = ticks(signals(nodes(15), at=30_900.0), 3, spec(), state)
    assert late.inputs["capacity_ordered_groups_per_s"] == pytest.approx(15 * RATE, rel=0.02)
    assert late.target == 22


def test_a_surplus_is_retired_gradually_after_five_minutes() -> None:
    advice, state = ticks(signals(nodes(40)), 9, spec())
    assert (advice.target, advice.reasons) == (40, (Reason.CONFIRMING_DOWN,))
    advice, _ = ticks(signals(nodes(40), at=30_270.0), 1, spec(), state)
    assert (advice.target, advice.reasons) == (30, (Reason.ABOVE_BAND,))
    assert len(advice.victims) == 10
    assert advice.victims[0] == "node-0"  # the youngest of equals


def test_a_surplus_is_kept_while_the_trainer_waits() -> None:
    waits = signals(nodes(40), streams=(stream(wait_share_600_s=0.05),))
    advice, _ = ticks(waits, 20, spec())
    assert (advice.target, advice.reasons[0]) == (40, Reason.TRAINER_WAITED_RECENTLY)
    assert "2.00" in render(advice.change)


def test_a_small_pool_without_a_spare_node_keeps_its_size() -> None:
    small = signals(nodes(2), streams=(stream(groups_per_step=64 / 20),))
    assert ticks(small, 40, spec())[0].target == 2


def test_a_surplus_is_recognized_despite_a_full_buffer() -> None:
    table = nodes(40)
    half_idle = replace(
        table,
        groups_long=table.groups_long / 2,
        busy_long_s=table.busy_long_s / 2,
        groups_short=table.groups_short / 2,
        busy_short_s=table.busy_short_s / 2,
    )
    assert ticks(signals(half_idle), 10, spec())[0].target == 30


def test_the_policy_with_the_highest_demand_determines_the_target() -> None:
    both = signals(nodes(22), streams=(stream(), stream(policy=PolicyId("verifier"), compute_s=(60.0,) * 6)))
    advice, _ = ticks(both, 2, spec())
    assert advice.target == 43
    assert advice.inputs["compute_s"] == 60.0


def test_a_shorter_step_time_counts_after_two_steps() -> None:
    once, _ = ticks(signals(nodes(22), streams=(stream(compute_s=(120.0,) * 5 + (60.0,)),)), 3, spec())
    twice, _ = ticks(signals(nodes(22), streams=(stream(compute_s=(120.0,) * 4 + (60.0, 60.0)),)), 3, spec())
    assert (once.target, twice.target) == (22, 43)


def test_an_unexplained_wait_raises_the_demand_gradually() -> None:
    waits = signals(nodes(23), streams=(stream(wait_share_300_s=0.2, wait_share_600_s=0.2),))
    advice, state = ticks(waits, 11, spec())
    assert advice.reasons == (Reason.TRIMMED,)
    assert state.trim == pytest.approx(1.1, abs=0.01)
    _, later = ticks(signals(nodes(23), at=40_000.0), 40, spec(), state)
    assert later.trim < state.trim


def test_slow_nodes_are_replaced_before_they_are_retired() -> None:
    rates = (RATE * 0.2,) * 3 + (RATE,) * 19
    advice, state = ticks(signals(nodes(22, rates=rates)), 11, spec())
    assert advice.reasons[0] is Reason.REPLACING
    assert advice.target > 22
    assert not advice.victims
    ordered = advice.target - 22
    up = nodes(22 + ordered, rates=rates + (RATE,) * ordered)
    advice, _ = ticks(signals(up, at=30_700.0), 1, spec(), state)
    assert advice.reasons[0] is Reason.RETIRING
    assert set(advice.victims) == {"node-0", "node-1", "node-2"}
    assert advice.target == 22 + ordered - 3


def test_at_a_limit_a_slow_node_is_retired_before_its_replacement() -> None:
    sizer_spec, rates = spec(pool={"max_nodes": 20}), (RATE * 0.2, RATE * 0.1, *(RATE,) * 18)
    advice, state = ticks(signals(nodes(20, rates=rates)), 11, sizer_spec)
    assert (advice.target, advice.victims) == (19, ("node-1",)), "one at a time, the slowest first"
    assert (Reason.REPLACING in advice.reasons, advice.limited_by) == (True, (LimitInEffect.MAX_NODES,))
    kept = (rates[0], *rates[2:])
    for in_its_place in (nodes(19, rates=kept), nodes(19, pending=1, rates=kept)):
        advice, state = ticks(signals(in_its_place, at=30_330.0), 2, sizer_spec, state)
        assert (advice.target, advice.victims) == (20, ()), "a replacement is requested"
    advice, state = ticks(signals(nodes(20, rates=(*kept, RATE)), at=30_450.0), 1, sizer_spec, state)
    assert (advice.target, advice.victims) == (19, ("node-0",))
    advice, _ = ticks(signals(nodes(20), at=30_600.0), 2, sizer_spec, state)
    assert advice.victims == ()


def test_at_a_limit_no_node_of_a_pool_at_its_minimum_is_removed() -> None:
    rates = (RATE * 0.1, *(RATE,) * 19)
    advice, _ = ticks(signals(nodes(20, rates=rates)), 11, spec(pool={"max_nodes": 20, "min_nodes": 20}))
    assert (advice.target, advice.victims) == (20, ())


def test_at_a_limit_no_working_node_is_retired_to_save_cost() -> None:
    dear, cheap = PoolId("dear"), PoolId("cheap")
    pools = {
        dear: PoolOptions(mode=Mode.ON, max_nodes=100, price_per_hour=3.0),
        cheap: PoolOptions(mode=Mode.ON, max_nodes=100, price_per_hour=1.0),
    }
    sizer_spec = replace(spec(max_nodes=15), pools=pools)
    table = replace(nodes(15), kind=np.where(np.arange(15) < 8, 0, 1))
    inputs = signals(table, kinds=(NodeKind(pool=dear), NodeKind(pool=cheap)))
    state = SizerState()
    for tick in range(70):  # longer than the half hour after which a swap is considered
        verdict = decide(replace(inputs, at=inputs.at + 30.0 * tick), sizer_spec, state)
        state = verdict.state
        assert not any(advice.victims for advice in verdict.recommendations)
    assert sum(advice.target for advice in verdict.recommendations) == 15


def test_targets_do_not_change_while_many_nodes_are_silent() -> None:
    table = nodes(40)
    silent = replace(table, silent_s=np.where(np.arange(40) < 10, 200.0, 0.0))
    advice, _ = ticks(signals(silent), 30, spec())
    assert (advice.target, advice.reasons) == (40, (Reason.STALE_INPUT,))


def test_targets_do_not_change_without_recent_steps_unless_the_trainer_waits() -> None:
    stuck, _ = ticks(signals(nodes(40), streams=(stream(step_age_s=2000.0),)), 30, spec())
    assert (stuck.target, stuck.reasons) == (40, (Reason.STALE_INPUT,))
    starved = stream(step_age_s=2000.0, wait_share_300_s=1.0, wait_share_600_s=1.0)
    assert ticks(signals(nodes(5), streams=(starved,)), 2, spec())[0].target == 22


@pytest.mark.parametrize("is_long", [False, True])
def test_nodes_whose_episodes_all_hang_are_no_reason_for_more_nodes(is_long: bool) -> None:
    waits = stream(wait_share_300_s=1.0, wait_share_600_s=1.0)
    _, state = ticks(signals(nodes(20)), 3, spec())
    table = replace(nodes(20), groups_short=np.zeros(20))
    hung = replace(table, groups_long=np.zeros(20)) if is_long else table
    verdict = decide(signals(hung, at=40_000.0, streams=(waits,)), spec(), state)
    (advice,) = verdict.recommendations
    assert (advice.target, advice.reasons) == (20, (Reason.STALLED,))
    again = decide(signals(nodes(5), at=40_030.0, streams=(waits,)), spec(), verdict.state).recommendations
    assert Reason.STALLED not in again[0].reasons


def test_few_nodes_without_a_finished_group_are_not_stalled() -> None:
    table = replace(nodes(1), groups_short=np.zeros(1))
    advice, _ = ticks(signals(table), 1, spec())
    assert Reason.STALLED not in advice.reasons


def test_without_busy_times_the_baseline_rule_is_used() -> None:
    table = nodes(10)
    blind = replace(table, busy_long_s=np.zeros(10), busy_short_s=np.zeros(10))
    waits = stream(wait_share_of_steps=0.3)
    advice, _ = ticks(signals(blind, streams=(waits,)), 1, spec())
    assert (advice.policy, advice.target) == ("baseline", 15)
    assert advice.reasons[0] is Reason.PLAIN_RULE


def test_targets_do_not_change_before_the_first_step() -> None:
    advice, _ = ticks(signals(nodes(4), streams=(stream(compute_s=(), steps=0),)), 5, spec())
    assert (advice.target, advice.reasons) == (4, (Reason.UNMEASURED,))


@pytest.mark.parametrize(
    ("sizer_spec", "target", "cap"),
    [
        (spec(pool={"max_nodes": 18}), 18, LimitInEffect.MAX_NODES),
        (spec(pool={"quota": 17}), 17, LimitInEffect.QUOTA),
        (spec(max_dollars_per_hour=16.0), 16, LimitInEffect.DOLLARS_PER_HOUR),
        (spec(max_nodes=19), 19, LimitInEffect.MAX_NODES),
        (spec(is_kill_switch_on=True), 15, LimitInEffect.KILL_SWITCH),
    ],
)
def test_a_limit_caps_the_target_and_is_reported(sizer_spec: Spec, target: int, cap: LimitInEffect) -> None:
    advice, _ = ticks(signals(nodes(15)), 2, sizer_spec)
    assert advice.target == target
    assert cap in advice.limited_by


def test_scale_ups_are_limited_to_two_in_ten_minutes() -> None:
    state = SizerState(scale_ups=(29_900.0, 29_950.0), targets={POOL: 15}, present_nodes={POOL: 15})
    advice, _ = ticks(signals(nodes(15)), 3, spec(), state)
    assert (advice.target, advice.limited_by) == (15, (LimitInEffect.ACTION_BUDGET,))


def test_modes_limit_the_recommendation() -> None:
    assert ticks(signals(nodes(40)), 20, spec(mode=Mode.UP_ONLY))[0].target == 40
    assert ticks(signals(nodes(15)), 3, spec(mode=Mode.UP_ONLY))[0].target == 22
    off, _ = ticks(signals(nodes(15)), 3, spec(mode=Mode.OFF))
    assert (off.target, off.reasons[0]) == (15, Reason.SWITCHED_OFF)


def test_manually_joined_nodes_count_in_the_pool() -> None:
    _, state = ticks(signals(nodes(21)), 3, spec())
    verdict = decide(signals(nodes(23), at=30_090.0), spec(), state)
    assert verdict.recommendations[0].target == 23
    assert not verdict.changed_pools


def test_the_cheapest_pool_is_filled_first_up_to_a_share() -> None:
    pools = {PoolId("cheap"): PoolOptions(mode=Mode.ON, max_nodes=100, price_per_hour=0.5)}
    pools[PoolId("dear")] = PoolOptions(mode=Mode.ON, max_nodes=100, price_per_hour=2.0)
    kinds = (NodeKind(pool=PoolId("cheap")), NodeKind(pool=PoolId("dear")))
    table = replace(nodes(12), kind=np.arange(12) % 2)
    inputs = signals(table, kinds=kinds)
    verdict = decide(inputs, Spec(options=SizerOptions(sustain_up_ticks=1), pools=pools), SizerState())
    cheap, dear = (advice.target for advice in verdict.recommendations)
    assert cheap + dear == 22
    assert cheap == 15


def test_failing_launches_move_growth_to_another_pool() -> None:
    names = (PoolId("a"), PoolId("b"))
    pools = {name: PoolOptions(mode=Mode.ON, max_nodes=100, price_per_hour=1.0) for name in names}
    kinds = tuple(NodeKind(pool=name) for name in names)
    table = replace(nodes(12), kind=np.arange(12) % 2)
    failing = {names[0]: LaunchSignals(failures=3, failed_at=29_990.0)}
    inputs = signals(table, kinds=kinds, launches=failing)
    verdict = decide(inputs, Spec(options=SizerOptions(sustain_up_ticks=1), pools=pools), SizerState())
    assert [advice.target for advice in verdict.recommendations] == [6, 16]


def test_late_nodes_reopen_the_only_pool() -> None:
    _, state = ticks(signals(nodes(15)), 2, spec())
    assert state.targets == {POOL: 22}
    late, state = ticks(signals(nodes(15), at=31_000.0), 5, spec(), state)
    assert LimitInEffect.BREAKER in late.limited_by
    come, state = ticks(signals(nodes(22), at=31_150.0), 1, spec(), state)
    assert come.limited_by == ()
    more, _ = ticks(signals(nodes(22), at=31_180.0, streams=(stream(compute_s=(60.0,) * 6),)), 3, spec(), state)
    assert more.target == 43


@pytest.mark.parametrize("count", [5, 40])
@pytest.mark.parametrize("rule", ["sizer", "baseline"])
def test_pools_with_partial_nodes_keep_their_size(count: int, rule: str) -> None:
    mixed = signals(nodes(count), partial_pools=(PoolId("judges"),))
    advice, state = ticks(mixed, 20, spec(rule=rule))
    assert (advice.target, advice.reasons) == (count, (Reason.PARTIAL_NODES,))
    assert not advice.inputs.keys() & {"ratio", "demand_groups_per_s", "capacity_groups_per_s"}
    assert "judges" in render(advice.change)
    bounded, _ = ticks(mixed, 1, spec(pool={"min_nodes": 7, "max_nodes": 30}), state)
    assert bounded.target == min(30, max(7, count))  # the bounds apply
    whole, _ = ticks(signals(nodes(count), at=31_000.0), 20, spec(), state)
    assert whole.target != count


def test_a_fast_launch_times_out_no_earlier_than_a_minute() -> None:
    quick = spec(pool={"launch_delay_s": 2.0})
    _, state = ticks(signals(nodes(15)), 2, quick)
    waited, _ = ticks(signals(nodes(15), at=30_080.0), 1, quick, state)
    assert (waited.target, waited.limited_by) == (22, ())


def test_a_faster_trainer_is_recognized_after_three_noisy_steps() -> None:
    """Reacts in spite of the median of the ratios of earlier ticks."""
    usual, faster = (120.0, 110.0, 130.0, 119.0, 122.0, 118.0, 121.0), (75.0, 95.0, 70.0)
    _, state = ticks(signals(nodes(22), streams=(stream(compute_s=usual),)), 10, spec())
    advice, _ = ticks(signals(nodes(22), at=30_330.0, streams=(stream(compute_s=usual + faster),)), 2, spec(), state)
    assert advice.target > 30


def test_every_recommendation_input_is_documented() -> None:
    advice, _ = ticks(signals(nodes(22)), 1, spec())
    assert advice.inputs.keys() <= RECOMMENDATION_INPUTS.keys()
    assert advice.input_hash == ticks(signals(nodes(22)), 1, spec())[0].input_hash
    assert advice.input_hash != ticks(signals(nodes(21)), 1, spec())[0].input_hash
