"""Cost of an ideal autoscaler that knows the future: the reference for the cost of every rule."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from astraflow.scaling.simulation.scenario import PoolScenario, Scenario

GRID_S = 30.0


def needed_groups_per_s(scenario: Scenario, at_s: float) -> float:
    """Returns the groups a second that keep the trainer from waiting."""
    pace, usable = 1.0, scenario.trainer.usable_share
    for event in scenario.events:
        if _is_active(event.at_h, event.duration_h, at_s):
            pace *= event.factor if event.kind == "demand" else 1.0
            usable *= event.factor if event.kind == "shrink_yield" else 1.0
    return scenario.trainer.batch_groups / scenario.trainer.step_s * pace / usable


def rate_factor(scenario: Scenario, pool: str, at_s: float, progress: float) -> float:
    """Returns the rate of a pool's nodes over their initial rate. progress: share of the steps completed."""
    factor = 1.0
    for event in scenario.events:
        if event.kind == "growth" and event.pool in ("", pool):
            factor /= 1 + (event.factor - 1) * min(1.0, progress)
        if event.kind == "rate" and event.share == 1.0 and event.pool in ("", pool) and at_s >= event.at_h * 3600:
            share = min(1.0, (at_s / 3600 - event.at_h) / event.duration_h) if event.duration_h else 1.0
            factor *= 1 + (event.factor - 1) * share
    return factor


def node_groups_per_s(scenario: Scenario, at_s: float, progress: float) -> float:
    """Returns the mean rate of a node of the fastest pool. Groups a second."""
    return max(
        pool.groups_per_s * sum(pool.speeds) / len(pool.speeds) * rate_factor(scenario, name, at_s, progress)
        for name, pool in scenario.pools.items()
    )


def ideal_node_hours(scenario: Scenario, hours: float) -> float:
    """Returns the node hours of exactly the needed nodes, each ordered one launch delay ahead.

    hours: duration of the run.
    """
    delay_h = _best(scenario).launch_delay_s / 3600
    ticks = range(int(hours * 3600 / GRID_S))
    counts = [_nodes(scenario, tick * GRID_S, progress=tick / len(ticks)) for tick in ticks]
    added = sum(max(0, after - before) for before, after in pairwise(counts))
    replaced = sum(
        event.share * counts[_tick(event.at_h, counts)]
        for event in scenario.events
        if _needs_replacement(event.kind, event.share)
    )
    preempted = sum(counts) * GRID_S / 3600 / _best(scenario).mean_life_h if _best(scenario).mean_life_h else 0.0
    return sum(counts) * GRID_S / 3600 + (added + replaced + preempted) * delay_h


def _best(scenario: Scenario) -> PoolScenario:
    return max(scenario.pools.values(), key=lambda pool: pool.groups_per_s * sum(pool.speeds) / len(pool.speeds))


def _nodes(scenario: Scenario, at_s: float, *, progress: float) -> int:
    return ceil(needed_groups_per_s(scenario, at_s) / node_groups_per_s(scenario, at_s, progress) - 1e-6)


def _needs_replacement(kind: str, share: float) -> bool:
    """Returns whether an event makes replacements necessary: lost nodes, or a part that became slow."""
    return kind == "loss" or (kind == "rate" and share < 1.0)


def _tick(at_h: float, counts: Sequence[int]) -> int:
    return min(int(at_h * 3600 / GRID_S), len(counts) - 1)


def _is_active(at_h: float, duration_h: float, at_s: float) -> bool:
    return at_s >= at_h * 3600 and (not duration_h or at_s < (at_h + duration_h) * 3600)
