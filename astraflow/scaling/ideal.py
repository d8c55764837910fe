"""What somebody who knows the future would spend: the measure of every policy's cost."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from astraflow.scaling.scenario import PoolScenario, Scenario

GRID_S = 30.0


def needed_groups_per_s(scenario: Scenario, at_s: float) -> float:
    """Groups that must be finished each second for the trainer never to wait."""
    pace, usable = 1.0, scenario.trainer.usable_share
    for event in scenario.events:
        if _is_on(event.at_h, event.over_h, at_s):
            pace *= event.factor if event.kind == "demand" else 1.0
            usable *= event.factor if event.kind == "shrink_yield" else 1.0
    return scenario.trainer.batch_groups / scenario.trainer.step_s * pace / usable


def rate_factor(scenario: Scenario, pool: str, at_s: float, progress: float) -> float:
    """What nodes of a pool do, over what they did at first. progress: share of the scenario's steps that are made."""
    factor = 1.0
    for event in scenario.events:
        if event.kind == "growth" and event.pool in ("", pool):
            factor /= 1 + (event.factor - 1) * min(1.0, progress)
        if event.kind == "rate" and event.share == 1.0 and event.pool in ("", pool) and at_s >= event.at_h * 3600:
            share = min(1.0, (at_s / 3600 - event.at_h) / event.over_h) if event.over_h else 1.0
            factor *= 1 + (event.factor - 1) * share
    return factor


def node_groups_per_s(scenario: Scenario, at_s: float, progress: float) -> float:
    """Of a node as the best pool launches them, on average."""
    return max(
        pool.groups_per_s * sum(pool.speeds) / len(pool.speeds) * rate_factor(scenario, name, at_s, progress)
        for name, pool in scenario.pools.items()
    )


def ideal_node_hours(scenario: Scenario, hours: float) -> float:
    """As many nodes as are needed at each moment, every one that is added or replaced ordered one delay ahead.

    hours: that the run lasted.
    """
    delay_h = _best(scenario).launch_delay_s / 3600
    ticks = range(int(hours * 3600 / GRID_S))
    counts = [_nodes(scenario, tick * GRID_S, progress=tick / len(ticks)) for tick in ticks]
    added = sum(max(0, after - before) for before, after in pairwise(counts))
    replaced = sum(
        event.share * counts[_tick(event.at_h, counts)] for event in scenario.events if _takes(event.kind, event.share)
    )
    taken = sum(counts) * GRID_S / 3600 / _best(scenario).life_h if _best(scenario).life_h else 0.0
    return sum(counts) * GRID_S / 3600 + (added + replaced + taken) * delay_h


def _best(scenario: Scenario) -> PoolScenario:
    return max(scenario.pools.values(), key=lambda pool: pool.groups_per_s * sum(pool.speeds) / len(pool.speeds))


def _nodes(scenario: Scenario, at_s: float, *, progress: float) -> int:
    return ceil(needed_groups_per_s(scenario, at_s) / node_groups_per_s(scenario, at_s, progress) - 1e-6)


def _takes(kind: str, share: float) -> bool:
    """Nodes that must be replaced: lost ones, and a part that became slow."""
    return kind == "lose" or (kind == "rate" and share < 1.0)


def _tick(at_h: float, counts: Sequence[int]) -> int:
    return min(int(at_h * 3600 / GRID_S), len(counts) - 1)


def _is_on(at_h: float, over_h: float, at_s: float) -> bool:
    return at_s >= at_h * 3600 and (not over_h or at_s < (at_h + over_h) * 3600)
