"""Rates of nodes from their counts: windows, slow nodes, stalled nodes and launch delays."""

from dataclasses import replace

import numpy as np
import pytest

from astraflow.scaling.measurement.signals import LaunchSignals, NodeKind, NodeTable
from astraflow.scaling.options import SizerOptions
from astraflow.scaling.rule.capacity import Capacity, capacity_of, launch_delay_s, price_of
from tests.scaling.make import POOL, nodes, signals, spec

RATE = 1 / 32


def table_of(groups: list[float], busy_s: list[float]) -> NodeTable:
    """Returns ready nodes with these counts over the long window, and the usual share of them over the short one."""
    long, busy = np.array(groups), np.array(busy_s)
    return replace(
        nodes(len(groups)), groups_long=long, busy_long_s=busy, groups_short=long * 0.3, busy_short_s=busy * 0.3
    )


def capacity(table: NodeTable, *, usual: float = 0.0, kinds: tuple[NodeKind, ...] = (NodeKind(pool=POOL),)) -> Capacity:
    return capacity_of(signals(table, kinds=kinds), SizerOptions(), usual=usual)


@pytest.mark.parametrize(("groups", "uses_short_window"), [(2.0, False), (1.0, True), (30.0, False), (31.0, True)])
def test_the_short_window_is_used_after_a_count_beyond_the_noise(groups: float, uses_short_window: bool) -> None:
    # Sixteen groups are expected, and 14 more or fewer are 3.5 standard deviations.
    table = replace(nodes(4, rates=(RATE,) * 4), busy_short_s=np.full(4, 128.0), groups_short=np.full(4, groups / 4))
    measured = capacity(table)
    assert measured.uses_short_window == uses_short_window
    assert measured.groups == (groups if uses_short_window else 75.0)


def test_a_node_is_slow_compared_with_three_or_more_of_its_kind() -> None:
    assert capacity(table_of([2.0, 20.0, 20.0], [600.0] * 3)).is_suspect.tolist() == [True, False, False]
    assert not capacity(table_of([2.0, 20.0], [600.0] * 2)).is_suspect.any()
    kinds = (NodeKind(pool=POOL, hardware="old"), NodeKind(pool=POOL, hardware="new"))
    mixed = replace(table_of([2.0, 2.0, 2.0, 20.0, 20.0, 20.0], [600.0] * 6), kind=np.array([0, 0, 0, 1, 1, 1]))
    assert not capacity(mixed, kinds=kinds).is_suspect.any()


@pytest.mark.parametrize(
    ("groups", "busy_s", "is_suspect"),
    [
        (20.0, 600.0, False),  # half of the usual rate
        (19.0, 600.0, True),
        (0.0, 100.0, False),  # 6.7 groups less: 2.6 standard deviations
        (0.0, 150.0, True),
    ],
)
def test_a_slow_node_has_less_than_half_of_the_usual_rate_beyond_the_noise(
    groups: float, busy_s: float, is_suspect: bool
) -> None:
    table = table_of([groups, *[40.0] * 4], [busy_s, *[600.0] * 4])
    assert capacity(table).is_suspect.tolist() == [is_suspect, *[False] * 4]


def test_nodes_of_a_hundred_busy_seconds_are_compared() -> None:
    assert capacity(table_of([0.0, *[40.0] * 4], [100.0, *[100.0] * 4])).is_suspect[0]
    assert not capacity(table_of([0.0, *[40.0] * 4], [99.0, *[100.0] * 4])).is_suspect[0]


@pytest.mark.parametrize(("busy_s", "is_stalled"), [(256.0, True), (255.0, False)])
def test_nodes_are_stalled_after_eight_groups_that_were_due(busy_s: float, is_stalled: bool) -> None:
    table = replace(nodes(1, rates=(RATE,)), groups_short=np.zeros(1), busy_short_s=np.array([busy_s]))
    measured = capacity(table, usual=RATE)
    assert (measured.overdue_groups, measured.is_stalled) == (busy_s * RATE, is_stalled)
    assert capacity(nodes(1), usual=RATE).overdue_groups == 0.0


def test_the_usual_rate_is_kept_from_thirty_groups_on() -> None:
    assert capacity(table_of([30.0], [960.0]), usual=0.5).usual_node_rate == pytest.approx(40 / (960 + 20))
    assert capacity(table_of([29.0], [960.0]), usual=0.5).usual_node_rate == 0.5


def test_a_rate_is_mixed_with_ten_groups_of_its_kind() -> None:
    measured = capacity(table_of([40.0, 0.0], [640.0, 640.0]))
    assert measured.kind_rates.tolist() == [RATE]
    assert measured.node_rates.tolist() == [50 / 960, 10 / 960]
    assert measured.of(np.array([True, False])) == 50 / 960


def test_a_kind_without_measurements_has_the_rate_of_its_hardware() -> None:
    kinds = tuple(
        NodeKind(pool=POOL, hardware=name, price_per_hour=price) for name, price in (("h", 1), ("h", 2), ("a", 1))
    )
    table = replace(table_of([60.0] * 3 + [20.0] * 3, [600.0] * 6), kind=np.array([0] * 3 + [2] * 3))
    fast, unmeasured, slow = capacity(table, kinds=kinds).kind_rates
    assert slow < unmeasured < fast
    assert unmeasured == pytest.approx(0.1, rel=0.05)


def test_nodes_without_work_have_no_rate() -> None:
    measured = capacity(table_of([0.0, 0.0], [0.0, 0.0]))
    assert (measured.is_measured, measured.kind_rates.tolist(), measured.node_rates.tolist()) == (False, [0.0], [0, 0])


def test_launch_delays_are_mixed_with_the_configured_one_until_five_are_measured() -> None:
    for delays_s, delay_s in (((), 300.0), ((10.0,) * 4, 184.0), ((10.0,) * 5, 10.0), ((10.0,) * 9 + (110.0,), 20.0)):
        inputs = signals(nodes(1), launches={POOL: LaunchSignals(delays_s=delays_s)})
        assert launch_delay_s(inputs, spec(), POOL) == pytest.approx(delay_s)
    assert launch_delay_s(signals(nodes(1)), spec(), POOL) == 300.0


def test_the_configured_price_counts_before_the_reported_one() -> None:
    assert price_of(signals(nodes(1)), spec(), 0) == 1.0
    assert price_of(signals(nodes(1)), spec(pool={"price_per_hour": 3.0}), 0) == 3.0
    strange = signals(nodes(1), kinds=(NodeKind(pool=POOL, price_per_hour=-2.0),))
    assert price_of(strange, spec(), 0) == 0.0
