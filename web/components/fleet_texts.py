"""Live texts about the fleet: size against demand, cost, and figures of each pool."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.capacity import CapacityBalance, pending_nodes
from astraflow.contract.reports.report import NodeState, PoolReport, Report
from web.components import formats
from web.components.diagnosis_texts import TonedTexts
from web.history.capacity import FleetPoint, fleet_point, mean_group_size, node_cache, pool_dollars
from web.history.points import Point, Series
from web.history.time_ranges import DEFAULT_RANGE, NAMED_RANGES_S

PRICE_WINDOW_S = 300.0
"""Time over which the price of trajectories is averaged, in seconds; rates over ten seconds vary too much."""


def fleet_texts(report: Report, series: Series, balance: CapacityBalance) -> TonedTexts:
    """Returns all live texts about the fleet and its pools. balance: that of the diagnosis."""
    now = fleet_point(report)
    points = series.window(NAMED_RANGES_S[DEFAULT_RANGE])
    live_texts: TonedTexts = {
        "ratio": (formats.ratio(balance.ratio), ""),
        "ratio_note": (ratio_note(balance), ""),
        "nodes": (formats.count(now.nodes), ""),
        "pending": (formats.count(now.pending), ""),
        "target": (formats.count(now.target), ""),
        "nodes_note": (nodes_note(now), ""),
        "price": (formats.dollars(price_of(series.window(PRICE_WINDOW_S))), ""),
        "price_note": (price_note(now, report), ""),
        "cost": (cost_text(now), ""),
        f"balance/{DEFAULT_RANGE}": (balance_insight(points), ""),
    }
    texts = {f"fleet/{name}": text for name, text in live_texts.items()}
    for pool in report.pools:
        texts |= _pool_texts(pool, report)
    return texts


def balance_insight(points: Sequence[Point]) -> str:
    """Returns the numbers of the chart of demand and capacity: those of its end, and the time below the demand."""
    measured = [point.fleet for point in points if point.fleet.demand and point.fleet.ready is not None]
    if not measured:
        return "Demand is measured from the third step on"
    last = measured[-1]
    below = sum(fleet.ratio is not None and fleet.ratio < 1 for fleet in measured) / len(measured)
    targets = [point.fleet.target for point in points if point.fleet.target is not None]
    moves = sum(earlier != later for earlier, later in itertools.pairwise(targets))
    moves_text = f"; the target moved {'once' if moves == 1 else f'{moves} times'}" if moves else ""
    below_text = f"; less than needed {formats.percent(below)} of the time" if below else ""
    return (
        f"Ready nodes can make {formats.rate(last.ready)} groups/s, and {formats.rate(last.demand)} are needed"
        f"{below_text}{moves_text}"
    )


def ratio_note(balance: CapacityBalance) -> str:
    """Returns both numbers of the ratio, and the capacity with pending nodes where there are any."""
    if balance.ratio is None:
        return "Not measured yet: needs three steps"
    note = f"{formats.rate(balance.ready)} groups/s ready, {formats.rate(balance.demand)} needed"
    return f"{note}, {formats.rate(balance.ordered)} with pending nodes" if balance.pending_nodes else note


def nodes_note(now: FleetPoint) -> str:
    """Returns the comparison of ready and pending nodes with the target."""
    if now.target is None:
        return "No target yet"
    current = now.nodes + now.pending
    if current < now.target:
        return f"{formats.several(now.target - current, 'node')} below target"
    if current > now.target:
        return f"{formats.several(current - now.target, 'node')} above target"
    return f"At target, {formats.several(now.pending, 'node')} pending" if now.pending else "At target"


def price_of(points: Sequence[Point]) -> float | None:
    """Returns the mean US dollars per thousand accepted trajectories over these points; None without a price."""
    prices = [(point.fleet.dollars, point.fleet.price) for point in points]
    priced = [(dollars, dollars / price) for dollars, price in prices if dollars and price]
    produced = sum(amount for _, amount in priced)
    return sum(dollars for dollars, _ in priced) / produced if produced else None


def price_note(now: FleetPoint, report: Report) -> str:
    """Returns the source of the price, or the setting that defines one."""
    if now.dollars is None:
        name = next((pool.id for pool in report.pools), "NAME")
        return f"No price: set dataflow.pools.{name}.price_per_hour"
    return f"Rollout nodes cost {formats.dollars(now.dollars)} an hour"


def cost_text(now: FleetPoint) -> str:
    """Returns the cost of all nodes per hour."""
    return formats.MISSING if now.dollars is None else f"{formats.dollars(now.dollars)}/h"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNodes:
    """Figures of the nodes of a pool that are joining, ready or draining."""

    regions: Sequence[str]
    """Regions of the nodes, sorted."""
    success: float | None
    """Share of the nodes' episodes that succeeded; None without any."""
    versions: Mapping[tuple[tuple[PolicyId, Version], ...], int]
    """Number of nodes by the versions that they serve: few combinations, of many nodes."""

    def lag_counts(self, report: Report) -> Mapping[int, int]:
        """Returns the number of nodes by the versions that they are behind a trainer."""
        trained = {stream.policy: stream.version for stream in report.streams}
        counts: Counter[int] = Counter()
        for versions, nodes in self.versions.items():
            lags = [trained[policy] - version for policy, version in versions if policy in trained]
            if lags:
                counts[max(0, *lags)] += nodes
        return counts


@node_cache(lambda _, pool: pool.id)
def pool_nodes(report: Report, pool: PoolReport) -> PoolNodes:
    """Returns the figures of a pool's nodes."""
    present = (NodeState.JOINING, NodeState.READY, NodeState.DRAINING)
    nodes = [node for node in report.nodes if node.facts.pool == pool.id and node.state in present]
    done = sum([node.counters.get("episodes_done", 0.0) for node in nodes])
    failed = sum([node.counters.get("episodes_failed", 0.0) for node in nodes])
    return PoolNodes(
        regions=sorted({node.facts.region for node in nodes} - {""}),
        success=done / (done + failed) if done + failed else None,
        versions=Counter([tuple(node.versions.items()) for node in nodes]),
    )


def _pool_texts(pool: PoolReport, report: Report) -> TonedTexts:
    recommendation = next((other for other in report.recommendations if other.pool == pool.id), None)
    nodes = pool_nodes(report, pool)
    lags = nodes.lag_counts(report)
    mean_lag = sum(lag * count for lag, count in lags.items()) / sum(lags.values()) if lags else None
    total = sum(other.episodes_per_s for other in report.pools)
    dollars = pool_dollars(report, pool, recommendation)
    accepted = _accepted_per_s(pool, report, total)
    live_texts: TonedTexts = {
        "share": (formats.percent(pool.episodes_per_s / total) if total else formats.MISSING, ""),
        "pending": (formats.count(pending_nodes(pool, recommendation)), ""),
        "target": (formats.count(recommendation.target if recommendation else None), ""),
        "yield": (formats.percent(nodes.success), ""),
        "lag": (formats.MISSING if mean_lag is None else f"{mean_lag:.1f} versions", ""),
        "cost": (f"{formats.dollars(dollars)}/h" if dollars else formats.MISSING, ""),
        "price": (formats.dollars(dollars / 3600 / accepted * 1000) if dollars and accepted else formats.MISSING, ""),
    }
    return {f"pool/{pool.id}/{name}": text for name, text in live_texts.items()}


def _accepted_per_s(pool: PoolReport, report: Report, total: float) -> float:
    """Returns the accepted trajectories per second of a pool: its share of the run's."""
    accepted = sum(stream.produced_per_s for stream in report.streams) * mean_group_size(report)
    return accepted * pool.episodes_per_s / total if total else 0.0
