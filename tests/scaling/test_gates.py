"""The gates that the default rule has to pass, in the simulator: four hours, eight seeds, mean and worst."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import pytest

from astraflow.scaling.course import Course
from astraflow.scaling.scenarios import find_scenario
from astraflow.scaling.simulator import simulate

SEEDS = range(8)
FLAP_SEEDS = {"noisy": range(24)}
"""Where a flap is a matter of chance, one of eight runs more or less says nothing."""
WORST_COST, WORST_WAIT, WORST_ACTIONS = 0.05, 0.006, 4
"""What the worst seed may exceed a gate by."""

MINUTE_S = 60.0


@dataclass(frozen=True)
class Gate:
    """Limits on the means over the seeds."""

    cost: float
    wait: float
    actions: float = float("inf")
    recovery_min: float = float("inf")


GATES = {
    "steady": Gate(cost=1.12, wait=0.003, actions=1),
    "over": Gate(cost=1.18, wait=0.003),
    "step": Gate(cost=1.12, wait=0.013, actions=4, recovery_min=10),
    "step-slow": Gate(cost=1.12, wait=0.023, actions=4, recovery_min=15),
    "step-and-back": Gate(cost=1.18, wait=0.013, actions=6),
    "tail": Gate(cost=1.12, wait=0.010, actions=4, recovery_min=12),
    "drift": Gate(cost=1.12, wait=0.003),
    "loss": Gate(cost=1.12, wait=0.003, actions=4, recovery_min=2),
    "slow-region": Gate(cost=1.18, wait=0.003, actions=12),
    "noisy": Gate(cost=1.30, wait=0.010),
    "mixed": Gate(cost=1.12, wait=0.010, actions=4),
    "spot": Gate(cost=1.12, wait=0.010),
}


@cache
def course(name: str, seed: int) -> Course:
    return simulate(find_scenario(name), seed=seed)


def courses(name: str) -> tuple[Course, ...]:
    return tuple(course(name, seed) for seed in SEEDS)


def mean(runs: tuple[Course, ...], figure: Callable[[Course], float]) -> float:
    return fmean(figure(run) for run in runs)


@pytest.mark.parametrize("name", GATES)
def test_the_default_rule_passes_its_gates(name: str) -> None:
    gate, runs = GATES[name], courses(name)
    assert mean(runs, lambda run: run.cost) <= gate.cost
    assert mean(runs, lambda run: run.wait) <= gate.wait
    assert mean(runs, lambda run: run.actions) <= gate.actions
    assert mean(runs, lambda run: run.recovery_s) / MINUTE_S <= gate.recovery_min
    assert max(run.cost for run in runs) <= gate.cost + WORST_COST
    assert max(run.wait for run in runs) <= gate.wait + WORST_WAIT
    assert max(run.actions for run in runs) <= gate.actions + WORST_ACTIONS


@pytest.mark.parametrize("name", GATES)
def test_targets_do_not_flap(name: str) -> None:
    runs = tuple(course(name, seed) for seed in FLAP_SEEDS.get(name, SEEDS))
    assert mean(runs, lambda run: run.flaps) <= 0.2


@pytest.mark.parametrize("name", ["step", "slow-region", "loss"])
def test_decisions_every_five_seconds_are_as_calm(name: str) -> None:
    gate = GATES[name]
    runs = tuple(simulate(find_scenario(name, {"sizer": {"tick_s": 5.0}}), seed=seed) for seed in range(2))
    assert mean(runs, lambda run: run.cost) <= gate.cost
    assert mean(runs, lambda run: run.wait) <= gate.wait
    assert mean(runs, lambda run: run.actions) <= gate.actions
    assert sum(run.flaps for run in runs) == 0


@pytest.mark.parametrize("delay_s", [30.0, 120.0, 600.0, 1500.0])
def test_a_step_is_not_overshot_whatever_the_launch_delay(delay_s: float) -> None:
    pool = {"launch_delay_s": delay_s, "bounds": {"launch_delay_s": delay_s}}
    scenario = find_scenario("step", {"pools": {"nodes": pool}})
    runs = tuple(simulate(scenario, seed=seed) for seed in range(3))
    assert max(run.peak_after for run in runs) <= 1.25
    assert mean(runs, lambda run: run.recovery_s) <= delay_s + 5 * MINUTE_S


@pytest.mark.parametrize("needed", [2, 3, 5, 8])
def test_small_pools_do_not_cycle(needed: int) -> None:
    pool = {"trainer": {"batch_groups": round(3.2 * needed)}, "pools": {"nodes": {"nodes": needed + 1}}}
    runs = tuple(simulate(find_scenario("small", pool), seed=seed) for seed in range(4))
    assert mean(runs, lambda run: run.actions) <= 2
    assert mean(runs, lambda run: run.wait) <= 0.003


def test_the_same_seed_is_the_same_run() -> None:
    assert simulate(find_scenario("noisy"), seed=3) == courses("noisy")[3]


def test_nothing_is_retired_while_too_many_nodes_are_silent() -> None:
    for seed in range(3):
        silent = [one for one in simulate(find_scenario("silence"), seed=seed).moments if 0.1 <= one.at_s / 3600 < 1.0]
        assert {one.target for one in silent} == {40}


def test_a_pause_keeps_the_pool_for_twenty_minutes_and_then_only_what_is_warm() -> None:
    run = simulate(find_scenario("pause"), seed=0)
    by_minute = {round(one.at_s / MINUTE_S, 1): one for one in run.moments}
    assert by_minute[79.0].target == by_minute[59.0].target
    assert by_minute[81.0].target == 1
    assert by_minute[130.0].target >= 20
    assert run.wait <= 0.025


def test_the_dollars_an_hour_are_never_exceeded_and_the_cap_is_reported_once() -> None:
    for seed in range(3):
        run = simulate(find_scenario("capped"), seed=seed)
        assert max(one.target for one in run.moments) <= 30
        assert run.actions <= 2
        assert any("held back by the dollars an hour" in one.sentence for one in run.moments)


def test_when_the_days_money_is_spent_only_warm_nodes_are_left() -> None:
    run = simulate(find_scenario("daily"), seed=0)
    assert run.moments[-1].target == 1
    assert run.dollars <= 70.0 + 2.0  # a tick and a drain after it was spent, and the warm node


def test_the_cheapest_region_is_filled_first_and_every_region_stays_warm() -> None:
    for seed in range(3):
        run = simulate(find_scenario("regions"), seed=seed)
        us, eu, apac = run.moments[-1].pools
        assert (apac, eu) == (12, 1)
        assert us / (us + eu + apac) <= 0.7
        assert run.wait <= 0.01
        assert run.cost <= 1.18


def test_orders_go_elsewhere_while_a_region_lets_nothing_out() -> None:
    for seed in range(3):
        run = simulate(find_scenario("failing-region"), seed=seed)
        during = next(one for one in run.moments if one.at_s / 3600 >= 1.5)
        assert during.ready >= 38
        assert run.wait <= 0.02
        assert run.cost <= 1.18
        assert run.flaps == 0


def test_without_spot_nodes_the_run_goes_on_with_others_and_comes_back() -> None:
    for seed in range(3):
        run = simulate(find_scenario("spot-drought"), seed=seed)
        before, drought, end = (next(one for one in run.moments if one.at_s / 3600 >= at) for at in (1.0, 1.95, 3.95))
        assert drought.pools[1] > before.pools[1]
        assert end.pools[0] > drought.pools[0]
        assert end.pools[1] < drought.pools[1]
        assert min(one.pools[1] for one in run.moments) >= 4
        assert run.wait <= 0.01
        assert run.dollars <= 0.75 * run.node_hours


def test_the_published_experiment_comes_out_as_published() -> None:
    few = simulate(find_scenario("published"), is_fixed=True)
    many = simulate(find_scenario("published", {"pools": {"rollout": {"nodes": 11}}}), is_fixed=True)
    plain = simulate(find_scenario("published", {"sizer": {"policy": "plain"}}))
    assert few.wait == pytest.approx(0.269, abs=0.02)
    assert many.wait == pytest.approx(0.021, abs=0.01)
    assert plain.wait == pytest.approx(0.030, abs=0.015)
    assert plain.node_hours < many.node_hours


def test_the_default_rule_needs_a_fifth_fewer_node_hours_than_the_fixed_pool_of_equal_wait() -> None:
    many = simulate(find_scenario("published", {"pools": {"rollout": {"nodes": 11}}}), is_fixed=True)
    ours = simulate(find_scenario("published"))
    assert ours.wait <= min(0.03, many.wait)
    assert ours.node_hours <= 0.8 * many.node_hours
