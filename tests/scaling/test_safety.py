"""Invariants of the sizer for any measurement: generated signals, several ticks in a row, invalid rows among them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.fleet.recommendations import Mode, Reason
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.records import render
from astraflow.scaling.measurement.lifecycle import Phase, PhaseEvent, next_phase
from astraflow.scaling.measurement.signals import LaunchSignals, NodeKind, NodeTable, Signals, StreamSignals
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerResult, SizerState

POOLS = (PoolId("one"), PoolId("two"))
ANY_NUMBER = st.floats(allow_nan=True, allow_infinity=True)
STRANGE = np.array([0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e-311, 1e-9, 1e300])


@st.composite
def pool_options(draw: st.DrawFn) -> PoolOptions:
    low = draw(st.integers(0, 5))
    return PoolOptions(
        mode=draw(st.sampled_from(Mode)),
        min_nodes=low,
        max_nodes=draw(st.integers(low, 40)),
        quota=draw(st.none() | st.integers(0, 20)),
        warm_nodes=draw(st.integers(0, 2)),
        is_spot=draw(st.booleans()),
        price_per_hour=draw(st.floats(0, 10)),
        launch_delay_s=draw(st.floats(1, 2000)),
    )


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    options = SizerOptions(
        rule=draw(st.sampled_from(["sizer", "baseline"])),
        max_nodes=draw(st.integers(0, 60)),
        max_dollars_per_hour=draw(st.none() | st.floats(0, 100)),
        max_dollars_per_day=draw(st.none() | st.floats(0, 1000)),
        base_on_demand=draw(st.integers(0, 3)),
        sustain_up_ticks=1,
        sustain_down_ticks=draw(st.integers(1, 3)),
    )
    return Spec(
        options=options, pools={pool: draw(pool_options()) for pool in POOLS}, is_kill_switch_on=draw(st.booleans())
    )


@st.composite
def streams(draw: st.DrawFn) -> StreamSignals:
    return StreamSignals(
        policy=PolicyId("solver"),
        compute_s=tuple(draw(st.lists(st.floats(0.1, 500) | ANY_NUMBER, max_size=10))),
        groups_per_step=draw(st.floats(0, 100) | ANY_NUMBER),
        produced_per_usable=draw(st.floats(1, 5) | ANY_NUMBER),
        wait_share_300_s=draw(st.floats(0, 1)),
        wait_share_600_s=draw(st.floats(0, 1)),
        step_age_s=draw(st.floats(0, 3000)),
        steps=draw(st.integers(0, 100)),
        wait_share_of_steps=draw(st.floats(0, 1)),
        consumed_per_entered=draw(st.floats(0, 3) | ANY_NUMBER),
    )


@st.composite
def node_tables(draw: st.DrawFn) -> NodeTable:
    """Draws values from a seed: a list of floats for each column would take hypothesis longer than the sizer."""
    count = draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    wrong = draw(st.sampled_from([0.0, 0.3]))

    def column(scale: float) -> np.ndarray:
        values = rng.uniform(0, scale, count) * rng.integers(0, 2, count)
        return np.where(rng.random(count) < wrong, rng.choice(STRANGE, count), values)

    return NodeTable(
        ids=tuple(f"node-{row}" for row in range(count)),
        kind=rng.integers(0, 3, count),
        phase=rng.integers(0, len(Phase), count),
        age_s=column(3000.0),
        silent_s=column(draw(st.sampled_from([30.0, 300.0]))),
        groups_long=column(100.0),
        busy_long_s=column(600.0),
        groups_short=column(30.0),
        busy_short_s=column(180.0),
    )


@st.composite
def signals(draw: st.DrawFn) -> Signals:
    return Signals(
        at=draw(st.floats(0, 1e6)),
        kinds=tuple(
            NodeKind(pool=POOLS[index % 2], hardware=str(index // 2), price_per_hour=1.0) for index in range(3)
        ),
        nodes=draw(node_tables()),
        streams=tuple(draw(st.lists(streams(), max_size=2))),
        launches={
            POOLS[0]: LaunchSignals(
                delays_s=tuple(draw(st.lists(st.floats(0, 3000), max_size=8))),
                failures=draw(st.integers(0, 5)),
                failed_at=draw(st.none() | st.floats(0, 1e6)),
            )
        },
        paused_s=draw(st.none() | st.floats(0, 5000)),
        dollars_today=draw(st.floats(0, 1000)),
    )


@st.composite
def several_ticks(draw: st.DrawFn) -> list[Signals]:
    begun = draw(st.floats(0, 1e6))
    drawn = draw(st.lists(signals(), min_size=1, max_size=5))
    return [replace(tick_, at=begun + 30.0 * tick) for tick, tick_ in enumerate(drawn)]


def verdicts(ticks: list[Signals], spec: Spec) -> list[tuple[SizerState, Signals, SizerResult]]:
    state, results = SizerState(), []
    for tick in ticks:
        verdict = decide(tick, spec, state)
        results.append((state, tick, verdict))
        state = verdict.state
    return results


@pytest.mark.long
@given(several_ticks(), specs())
@settings(max_examples=200)
def test_every_target_is_within_the_bounds_of_its_pool(ticks: list[Signals], spec: Spec) -> None:
    for _, _, verdict in verdicts(ticks, spec):
        for advice in verdict.recommendations:
            assert spec.pools[advice.pool].min_nodes <= advice.target <= spec.pools[advice.pool].max_nodes
            assert advice.reasons
            assert "?" not in render(advice.change), "every figure of the reason is there"


@pytest.mark.long
@given(several_ticks(), specs())
@settings(max_examples=200)
def test_targets_above_the_dollar_cap_are_those_that_must_not_fall(ticks: list[Signals], spec: Spec) -> None:
    cap = spec.options.max_dollars_per_hour
    for _, _, verdict in verdicts(ticks, spec):
        is_held = spec.is_kill_switch_on or any(
            Reason.STALE_INPUT in advice.reasons for advice in verdict.recommendations
        )
        prices = {advice.pool: advice.inputs["price_per_hour"] for advice in verdict.recommendations}
        cost = sum(advice.target * prices[advice.pool] for advice in verdict.recommendations)
        if cap is None or is_held or cost <= cap + 1e-6:
            continue
        for advice in verdict.recommendations:
            options = spec.pools[advice.pool]
            may_shrink = options.mode in (Mode.ADVISE, Mode.ON) and prices[advice.pool] > 0
            assert advice.target <= options.floor or not may_shrink


@pytest.mark.long
@given(several_ticks(), specs())
@settings(max_examples=200)
def test_no_target_falls_on_stale_data_or_under_the_kill_switch(ticks: list[Signals], spec: Spec) -> None:
    for state, recommendation, verdict in verdicts(ticks, spec):
        for advice in verdict.recommendations:
            is_held = spec.is_kill_switch_on or Reason.STALE_INPUT in advice.reasons
            if not is_held or advice.mode is Mode.OFF or Reason.LAUNCHES_FAILING in advice.reasons:
                continue
            before = state.targets.get(advice.pool, advice.present)
            options = spec.pools[advice.pool]
            most = min(options.max_nodes, options.quota if options.quota is not None else options.max_nodes)
            failures = recommendation.launches[POOLS[0]].failures if advice.pool == POOLS[0] else 0
            if failures < spec.options.breaker_failures:
                assert advice.target >= min(before, max(options.floor, most))


@pytest.mark.long
@given(several_ticks(), specs())
def test_the_same_input_gives_the_same_advice(ticks: list[Signals], spec: Spec) -> None:
    first = [repr(verdict) for _, _, verdict in verdicts(ticks, spec)]
    assert first == [repr(verdict) for _, _, verdict in verdicts(ticks, spec)]


@pytest.mark.long
@given(several_ticks(), specs(), st.sampled_from([float("nan"), float("inf"), -1.0]), st.data())
def test_an_invalid_record_of_a_node_leaves_only_that_node_unmeasured(
    ticks: list[Signals], spec: Spec, wrong: float, data: st.DataObject
) -> None:
    first_tick = ticks[0]
    if not first_tick.nodes.ids:
        return
    row = data.draw(st.integers(0, len(first_tick.nodes.ids) - 1))

    def with_row(value: float) -> Signals:
        columns = {
            name: getattr(first_tick.nodes, name).copy()
            for name in ("groups_long", "busy_long_s", "groups_short", "busy_short_s")
        }
        for column in columns.values():
            column[row] = value
        return replace(first_tick, nodes=replace(first_tick.nodes, **columns))

    broken, unmeasured = (decide(with_row(value), spec, SizerState()) for value in (wrong, 0.0))
    assert repr([replace(advice, input_hash="") for advice in broken.recommendations]) == repr(
        [replace(advice, input_hash="") for advice in unmeasured.recommendations]
    )


def test_every_event_is_defined_in_every_phase() -> None:
    for phase in Phase:
        for happening in PhaseEvent:
            after = next_phase(phase, happening)
            assert after >= phase  # phases never go back
            assert next_phase(Phase.GONE, happening) is Phase.GONE
