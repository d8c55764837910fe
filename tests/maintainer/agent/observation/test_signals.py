"""Straggler detection: nodes and whole regions, compared with the best region of similar nodes."""

from collections.abc import Mapping
from dataclasses import replace

from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.pools import FleetStatus, KillScope, Pool
from astraflow.contract.ids import PoolId
from astraflow.contract.reports.report import NodeReport
from maintainer.agent.config import WatchConfig
from maintainer.agent.observation.names import Names
from maintainer.agent.observation.signals import Signal, SignalKind, SignalMemory, best_median_speeds, detect_signals
from maintainer.agent.observation.snapshot import Snapshot
from maintainer.agent.tools.inputs import ReportInput
from maintainer.agent.tools.views.reports import report_view
from maintainer.agent.tools.views.view_context import ViewContext
from tests import make
from tests.maintainer.fleet.parts import spec

WATCH = WatchConfig()
STEP_S = 5.0


def node(name: str, pool: str, speed: float, *, hardware: str = "a shelf", leased: int = 2) -> NodeReport:
    report = make.node_report(f"{name}.1")
    facts = replace(report.facts, pool=PoolId(pool), hardware=hardware)
    return replace(report, facts=facts, episodes_per_s=speed, leased=leased)


def region(pool: str, *speeds: float, hardware: str = "a shelf", leased: int = 2) -> tuple[NodeReport, ...]:
    return tuple(
        node(f"{pool}-{number}", pool, speed, hardware=hardware, leased=leased) for number, speed in enumerate(speeds)
    )


def snapshot(at: float, nodes: tuple[NodeReport, ...]) -> Snapshot:
    pools = tuple(
        Pool(
            spec=spec(id=PoolId(name)),
            version=1,
            target=0,
            nodes={},
            usd_per_hour=0.0,
            usd_today=0.0,
            rule_target=None,
            launch_delay_s=60.0,
        )
        for name in sorted({node.facts.pool for node in nodes})
    )
    fleet = FleetStatus(
        cluster="c",
        at=at,
        pools=pools,
        kill=KillScope.NONE,
        kill_reason="",
        usd_per_hour=0.0,
        usd_today=0.0,
        last_sweep_at=None,
        orphans=0,
    )
    return Snapshot(at=at, fleet=fleet, report=make.report(nodes=nodes), report_age_s=0.0)


def stragglers(nodes: tuple[NodeReport, ...], *, for_s: float = 2 * WATCH.straggler_s) -> Mapping[str, float]:
    """Returns the stragglers reported after `for_s` seconds, and their relative speed."""
    memory, signals = SignalMemory(), tuple[Signal, ...]()
    for step in range(int(for_s / STEP_S) + 1):
        memory, signals = detect_signals(memory, snapshot(1000.0 + step * STEP_S, nodes), WATCH)
    return {signal.subject: signal.value for signal in signals if signal.kind is SignalKind.STRAGGLER}


def test_a_region_is_slow_though_it_has_most_nodes_and_they_are_alike() -> None:
    slow_nodes = stragglers((*region("eu", 0.2, 0.25, 0.2, 0.2), *region("us", 1.0, 1.0)))
    assert slow_nodes == {"eu-0": 0.2, "eu-1": 0.25, "eu-2": 0.2, "eu-3": 0.2}


def test_one_node_is_slow_compared_with_its_region() -> None:
    assert set(stragglers(region("eu", 1.0, 1.0, 0.3))) == {"eu-2"}


def test_one_fast_node_makes_no_other_slow() -> None:
    assert stragglers((*region("eu", 0.4, 0.4, 0.4), *region("us", 1.0))) == {}


def test_nodes_of_slower_hardware_are_not_slow() -> None:
    assert stragglers((*region("eu", 0.2, 0.2, 0.2, hardware="old"), *region("us", 1.0, 1.0, 1.0))) == {}


def test_idle_nodes_are_not_slow() -> None:
    assert stragglers((*region("eu", 0.0, 0.0, leased=0), *region("us", 1.0, 1.0))) == {}


def test_a_briefly_slow_node_causes_no_signal() -> None:
    nodes = (*region("eu", 0.2, 0.2), *region("us", 1.0, 1.0))
    assert stragglers(nodes, for_s=WATCH.straggler_s - STEP_S) == {}
    assert set(stragglers(nodes, for_s=WATCH.straggler_s)) == {"eu-0", "eu-1"}


def test_two_nodes_are_too_few_for_a_comparison() -> None:
    nodes = {report.facts.name: report for report in region("eu", 0.1, 1.0)}
    assert best_median_speeds(nodes, {name: report.episodes_per_s for name, report in nodes.items()}) == {}


def test_the_model_is_told_a_slow_regions_rate_and_the_best_regions() -> None:
    nodes = (*region("eu", 0.2, 0.25, 0.2, 0.2), *region("us", 1.0, 1.0), node("old-1", "old", 0.1, hardware="old"))
    view = report_view(ViewContext(snapshot(1000.0, nodes), (), Names(b"key")), ReportInput(), mode=MaintainerMode.AUTO)
    shares = {pool.pool: (pool.node_episodes_per_s, pool.node_speed_share) for pool in view.pools}
    expected = {"eu": (0.2, 0.2), "us": (1.0, 1.0), "old": (0.1, None)}
    assert shares == {Names(b"key").token("pool", name): share for name, share in expected.items()}
