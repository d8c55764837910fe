"""Signals derived from reports: measurements of nodes and trainers, second by second."""

from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.reports.report import NodeReport, NodeState, Report, StreamReport
from astraflow.scaling.measurement.lifecycle import Phase
from astraflow.scaling.measurement.observation import Observer, episodes_per_group
from astraflow.scaling.options import PoolOptions, Spec
from tests import make

LOCAL = PoolId("local")


def node(name: str = "node-1.1", *, done: float = 0.0, busy_s: float = 0.0, **changes: Any) -> NodeReport:
    return replace(make.node_report(name, counters={"episodes_done": done, "busy_s": busy_s}), **changes)


def stream(steps: int = 0, **changes: Any) -> StreamReport:
    values = {"wait_s": 0.0, "compute_s": 0.0, "publish_s": 0.0, "admitted": 0, "trained": 0}
    return make.stream_report(steps=steps, **values | changes)


def report(at: float, *nodes: NodeReport, of: StreamReport | None = None, **changes: Any) -> Report:
    flow = replace(make.flow_report(issued=10, dropped=0), tasks_leased=0)
    return replace(make.report(of or stream(), flows=(flow,)), nodes=nodes, at=at, **changes)


def test_groups_and_busy_seconds_are_measured_over_the_window() -> None:
    observer = Observer(Spec())
    observer.observe(report(0.0, node(done=400, busy_s=100)))
    observer.signals()
    observer.observe(report(30.0, node(done=440, busy_s=130), node("node-2.2", done=6, busy_s=5)))
    nodes = observer.signals().nodes
    assert nodes.ids == ("node-1.1", "node-2.2")
    assert nodes.groups_long.tolist() == [10.0, 0.0]  # four episodes a group
    assert nodes.busy_long_s.tolist() == [30.0, 0.0]


def test_a_node_counts_after_as_many_episodes_as_it_has_slots() -> None:
    observer = Observer(Spec())
    counts = []
    for at, done in ((10.0, 6), (20.0, 12), (30.0, 24), (40.0, 36)):  # of eight slots
        observer.observe(report(at, node(done=done, busy_s=at)))
        nodes = observer.signals().nodes
        counts.append((float(nodes.groups_long[0]), float(nodes.busy_long_s[0])))
    assert counts == [(0.0, 0.0), (0.0, 0.0), (3.0, 10.0), (6.0, 20.0)]


def test_a_node_that_finishes_nothing_counts_after_the_long_window() -> None:
    observer = Observer(Spec())
    for at in (0.0, 300.0, 600.0):
        observer.observe(report(at, node(done=1, busy_s=at)))
        nodes = observer.signals().nodes
    assert (nodes.groups_long.tolist(), nodes.busy_long_s.tolist()) == ([0.25], [600.0])


def test_members_of_open_groups_count_for_the_size_of_a_group() -> None:
    opening = replace(
        make.flow_report(issued=5, dropped=0),
        open=4,
        admitted=1,
        tasks_leased=8,
        tasks_queued=2,
        episodes={"accepted": 10},
    )
    assert episodes_per_group(replace(report(0.0), flows=(opening,))) == 4.0
    assert episodes_per_group(replace(report(0.0), flows=())) == 1.0


def test_departed_and_lost_nodes_are_left_out() -> None:
    observer = Observer(Spec())
    states = (NodeState.JOINING, NodeState.READY, NodeState.DRAINING, NodeState.LOST, NodeState.GONE)
    observer.observe(report(0.0, *(node(f"node-{n}.{n}", state=state) for n, state in enumerate(states))))
    assert observer.signals().nodes.phase.tolist() == [Phase.WARMING, Phase.READY, Phase.DRAINING]


def test_pools_with_nodes_of_some_policies_are_marked_partial() -> None:
    observer = Observer(Spec())
    whole, other = node(), stream(policy=PolicyId("verifier"))
    policies = (stream().policy, other.policy)

    def partial(name: str, pool: str, *served: PolicyId, **changes: Any) -> NodeReport:
        return node(name, facts=replace(whole.facts, pool=PoolId(pool), policies=served), **changes)

    observer.observe(
        replace(
            report(
                0.0,
                whole,
                partial("node-2.2", "all", *policies),
                partial("node-3.3", "some", policies[0], state=NodeState.JOINING),
                partial("node-4.4", "past", policies[0], state=NodeState.GONE),
            ),
            streams=(stream(), other),
        )
    )
    assert observer.signals().partial_pools == (PoolId("some"),)


def test_the_duration_of_a_step_excludes_its_wait() -> None:
    observer = Observer(Spec())
    observer.observe(report(0.0, of=stream()))
    observer.observe(report(60.0, of=stream(1, wait_s=20.0, compute_s=35.0, publish_s=5.0)))
    observer.observe(report(200.0, of=stream(3, wait_s=20.0, compute_s=125.0, publish_s=15.0)))
    (stream_signals,) = observer.signals().streams
    assert stream_signals.compute_s == (40.0, 50.0, 50.0)
    assert stream_signals.wait_share_of_steps == pytest.approx(20 / 160)


def test_a_wait_counts_once_also_while_it_lasts() -> None:
    observer = Observer(Spec())
    observer.observe(report(0.0, of=stream()))
    assert observer.signals().streams[0].wait_share_300_s == 0.0
    observer.observe(report(50.0, of=stream(is_waiting=True)))
    observer.observe(report(80.0, of=stream(is_waiting=True)))
    assert observer.signals().streams[0].wait_share_300_s == pytest.approx(30 / 80)
    observer.observe(report(90.0, of=stream()))  # it computes; the step reports the wait
    assert observer.signals().streams[0].wait_share_300_s == pytest.approx(30 / 90)
    observer.observe(report(100.0, of=stream(1, wait_s=31.0, compute_s=20.0)))
    assert observer.signals().streams[0].wait_share_300_s == 0.0, "nodes started during the wait for the first batch"
    observer.observe(report(120.0, of=stream(1, wait_s=31.0, compute_s=20.0, is_waiting=True)))
    observer.observe(report(140.0, of=stream(2, wait_s=51.0, compute_s=40.0)))
    assert observer.signals().streams[0].wait_share_300_s == pytest.approx(20 / 40)


def test_filtered_groups_raise_the_required_production() -> None:
    observer = Observer(Spec())
    observer.observe(report(0.0, node(done=0), of=stream()))
    observer.observe(report(10.0, node(done=40), of=stream(1, admitted=2)))
    observer.signals()
    observer.observe(report(30.0, node(done=120), of=stream(2, admitted=14, trained=16, dropped={"stale": 2})))
    (stream_signals,) = observer.signals().streams
    assert stream_signals.produced_per_usable == pytest.approx((20 + 4) / (10 + 4))  # a batch of four counts as typical
    assert stream_signals.groups_per_step == 8


def test_a_run_is_paused_only_if_every_flow_is() -> None:
    observer = Observer(Spec())
    paused = replace(make.flow_report(), is_paused=True)
    observer.observe(replace(report(0.0), flows=(paused,)))
    observer.observe(replace(report(30.0), flows=(paused,)))
    assert observer.signals().paused_s == 30.0
    observer.observe(replace(report(60.0), flows=(paused, make.flow_report("other"))))
    assert observer.signals().paused_s is None


def test_costs_are_summed_per_day() -> None:
    observer = Observer(Spec(pools={LOCAL: PoolOptions(max_nodes=4, price_per_hour=6.0)}))
    observer.observe(report(80_000.0, node(), node("node-2.2")))
    observer.observe(report(81_800.0, node(), node("node-2.2")))
    assert observer.signals().dollars_today == pytest.approx(6.0)
    observer.observe(report(86_400.0, node()))
    assert observer.signals().dollars_today == pytest.approx(6.0 * 4600 / 3600)


def test_a_clock_that_steps_back_over_midnight_renews_no_daily_costs() -> None:
    observer = Observer(Spec(pools={LOCAL: PoolOptions(max_nodes=4, price_per_hour=3600.0)}))
    for at in (86_300.0, 86_500.0, 86_350.0, 86_450.0, 86_460.0):
        observer.observe(report(at, node()))
    assert observer.signals().dollars_today == pytest.approx(200.0 + 100.0 + 10.0)


def test_launch_delays_are_measured_for_requested_nodes() -> None:
    observer = Observer(Spec())
    observer.observe(report(0.0))
    observer.observe(report(100.0, node()), ordered_at={LOCAL: 40.0})
    observer.observe(report(130.0, node(), node("node-2.2")))
    assert observer.signals().launches[LOCAL].delays_s == (60.0,)
