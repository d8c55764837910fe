"""Slow and overpriced nodes: which are replaced, when, and which are retired once their replacements are ready."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.fleet.recommendations import LimitInEffect, Mode, Reason
from astraflow.scaling.measurement.signals import LaunchSignals, Signals
from astraflow.scaling.options import PoolBudget
from astraflow.scaling.rule.state import SizerResult
from tests.scaling.make import AT, FIRST, SECOND, decided, targets, two_pools

LONG_AGO: dict[str, Any] = {"acted_at": AT - 1800.0}
EXACT: dict[str, Any] = {"headroom": 0.0}


def with_slow(inputs: Signals, *rows: int) -> Signals:
    """Returns the signals with nodes that work at an eighth of the usual rate, the later ones a little slower."""
    factor = np.ones(len(inputs.nodes.ids))
    for number, row in enumerate(rows):
        factor[row] = 1 / (8 + number)
    nodes = inputs.nodes
    table = replace(nodes, groups_long=nodes.groups_long * factor, groups_short=nodes.groups_short * factor)
    return replace(inputs, nodes=table)


def replaced(result: SizerResult) -> list[str]:
    return sorted(result.state.being_replaced)


@pytest.mark.parametrize(("since_s", "nodes"), [(300.0, ["node-3"]), (299.0, [])])
def test_a_node_is_replaced_after_five_slow_minutes(since_s: float, nodes: list[str]) -> None:
    inputs = with_slow(two_pools(0, 20), 3)
    result = decided(inputs, suspects={"node-3": AT - since_s}, first={"mode": Mode.OFF})
    assert (replaced(result), Reason.REPLACING in result.recommendations[1].reasons) == (nodes, bool(nodes))
    assert result.state.suspects == {"node-3": AT - since_s}


@pytest.mark.parametrize(
    "kept",
    [
        {"second": {"mode": Mode.UP_ONLY}},
        {"suspects": {"node-4": 0.0}},  # not slow any more
        {"scale_ups": (AT - 1, AT - 599)},
        {"being_replaced": frozenset({"node-9"})},
    ],
    ids=str,
)
def test_a_slow_node_is_kept_in_pools_that_keep_their_nodes_and_after_other_actions(kept: dict[str, Any]) -> None:
    slow: dict[str, Any] = {"suspects": {"node-3": 0.0}, "first": {"mode": Mode.OFF}}
    result = decided(with_slow(two_pools(0, 20), 3), **slow | kept)
    assert "node-3" not in result.state.being_replaced


@pytest.mark.parametrize(("share", "count"), [(0.15, 3), (0.1, 2), (0.01, 1)])
def test_a_share_of_the_nodes_is_replaced_at_once(share: float, count: int) -> None:
    inputs = with_slow(two_pools(0, 20), 3, 4, 5, 6)
    suspects = {f"node-{row}": 0.0 for row in (3, 4, 5, 6)}
    result = decided(inputs, suspects=suspects, first={"mode": Mode.OFF}, options={"scale_down_share": share})
    assert len(result.state.being_replaced) == count


def test_without_a_lack_slow_nodes_leave_without_replacement() -> None:
    inputs = with_slow(two_pools(0, 20), 3)
    result = decided(inputs, suspects={"node-3": 0.0}, first={"mode": Mode.OFF}, options=EXACT)
    assert (targets(result)[1], replaced(result)) == (20, ["node-3"])


@pytest.mark.parametrize(
    ("needed", "ready", "victims", "left"),
    [
        (16.0, 18, ("node-16", "node-17"), []),
        (17.0, 18, ("node-16",), ["node-17"]),
        (18.0, 18, (), ["node-16", "node-17"]),
    ],
)
def test_replaced_nodes_are_retired_while_the_others_carry_the_load(
    needed: float, ready: int, victims: tuple[str, ...], left: list[str]
) -> None:
    result = decided(
        two_pools(0, ready, needed=needed),
        first={"mode": Mode.OFF},
        options=EXACT,
        being_replaced=frozenset({"node-16", "node-17", "gone"}),
    )
    advice = result.recommendations[1]
    assert (advice.victims, replaced(result)) == (victims, left)
    assert advice.target >= ready - len(victims)
    assert (Reason.RETIRING in advice.reasons) == bool(victims)
    assert (result.state.acted_at == AT) == bool(victims)


def test_replaced_nodes_stay_while_their_replacements_start() -> None:
    result = decided(
        two_pools(0, 18),
        first={"mode": Mode.OFF},
        options=EXACT,
        targets={FIRST: 0, SECOND: 20},
        missing_since={SECOND: AT - 30.0},
        being_replaced=frozenset({"node-16", "node-17"}),
    )
    assert (targets(result)[1], result.recommendations[1].victims) == (20, ())
    assert replaced(result) == ["node-16", "node-17"]


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 3),  # until the cheap pool holds its share: 0.7 of 16
        ({"options": {"pool_share": 1.0}}, 4),  # a quarter of all
        ({"options": {"pool_share": 1.0, "scale_down_share": 1.0}}, 7),  # all but the warm node
        ({"options": {"base_on_demand": 14}}, 2),
        ({"options": {"base_on_demand": 14}, "second": {"is_spot": True}}, 3),
        ({"first": {"max_nodes": 10}}, 2),
        ({"second": {"min_nodes": 7}}, 1),
        ({"second": {"min_nodes": 8}}, 0),
        ({"acted_at": AT - 1799.0}, 0),
        ({"first": {"mode": Mode.OFF}}, 0),
        ({"second": {"mode": Mode.UP_ONLY}}, 0),
        ({"first": {"price_per_hour": 0.5}, "second": {"price_per_hour": 0.9}}, 3),
        ({"second": {"price_per_hour": 1.2}}, 3),
        ({"second": {"price_per_hour": 1.19}}, 0),
        ({"first": {"price_per_hour": 2.0}, "second": {"price_per_hour": 2.5}}, 3),
        ({"spec": {"money": {SECOND: PoolBudget(price_paid=1.1)}}}, 0),
        ({"breaker_until": {FIRST: AT - 1800.0}}, 3),
        ({"breaker_until": {FIRST: AT - 1799.0}}, 0),
        ({"failed_at": AT - 1800.0}, 3),
        ({"failed_at": AT - 1799.0}, 0),
        ({"failed_at": AT - 1799.0, "breaker_until": {FIRST: AT - 3000.0}}, 0),
    ],
    ids=str,
)
def test_nodes_of_an_expensive_pool_are_replaced_by_those_of_a_healthy_cheap_pool(
    more: dict[str, Any], count: int
) -> None:
    failed_at = more.pop("failed_at", None)
    launches = {} if failed_at is None else {FIRST: LaunchSignals(failed_at=failed_at, failures=1)}
    options = {**EXACT, **more.pop("options", {})}
    result = decided(two_pools(8, 8, launches=launches), options=options, **LONG_AGO | more)
    assert replaced(result) == sorted(f"node-{8 + row}" for row in range(count))
    assert targets(result) == [8 + count, 8]
    assert all(advice.victims == () for advice in result.recommendations)


def test_no_expensive_node_is_replaced_while_a_node_starts_or_capacity_is_short() -> None:
    inputs = two_pools(8, 9)
    starting = replace(inputs.nodes, phase=np.array([4] * 16 + [2]), age_s=np.array([900.0] * 16 + [10.0]))
    for table, needed in ((starting, 16.0), (two_pools(8, 8).nodes, 17.0)):
        measured = replace(two_pools(8, 8, needed=needed), nodes=table)
        result = decided(measured, options={**EXACT, "sustain_up_ticks": 9}, **LONG_AGO)
        assert replaced(result) == []


def test_at_a_limit_the_slowest_node_is_retired_first_and_only_above_the_minimum() -> None:
    inputs = with_slow(two_pools(0, 16), 3, 4)
    slow: dict[str, Any] = {
        "suspects": {"node-3": 0.0, "node-4": 0.0},
        "first": {"mode": Mode.OFF},
        "options": {"sustain_up_ticks": 1},
    }
    result = decided(inputs, second={"max_nodes": 16}, **slow)
    assert (targets(result)[1], result.recommendations[1].victims) == (15, ("node-4",))
    assert LimitInEffect.MAX_NODES in result.recommendations[1].limited_by
    kept = decided(inputs, second={"max_nodes": 16, "min_nodes": 16}, **slow)
    assert (targets(kept)[1], kept.recommendations[1].victims) == (16, ())
