"""Live texts about the fleet: is it right-sized, what does it cost, and how each pool does."""

import itertools
from collections.abc import Sequence

from astraflow.contract.reports import NodeReport, NodeState, PoolReport, Report
from web.feed.capacity import FleetPoint, fleet_point, group_members, pending_nodes, pool_dollars
from web.feed.per_nodes import per_nodes
from web.history.points import Point, Series
from web.history.ranges import DEFAULT_RANGE, RANGES_S
from web.present import formats

Texts = dict[str, tuple[str, str]]
"""Text and tone by key."""

PRICED_S = 300.0
"""A price for trajectories is a mean over so long: rates of ten seconds waver."""


def fleet_cells(report: Report, series: Series) -> Texts:
    """Everything about the fleet and its pools that changes while a page is open."""
    now = fleet_point(report)
    points = series.window(RANGES_S[DEFAULT_RANGE])
    cells: Texts = {
        "ratio": (formats.ratio(now.ratio), ratio_tone(now)),
        "ratio_note": (ratio_note(now), ratio_tone(now)),
        "nodes": (formats.count(now.nodes), ""),
        "pending": (formats.count(now.pending), ""),
        "target": (formats.count(now.target), ""),
        "nodes_note": (nodes_note(now), ""),
        "price": (formats.dollars(price_of(series.window(PRICED_S))), ""),
        "price_note": (price_note(now, report), ""),
        "cost": (cost_text(now), ""),
        f"balance/{DEFAULT_RANGE}": (balance_finding(points), ""),
    }
    found = {f"fleet/{name}": cell for name, cell in cells.items()}
    for pool in report.pools:
        found |= _pool_cells(pool, report)
    return found


def balance_finding(points: Sequence[Point]) -> str:
    """What the chart of demand and capacity shows, in a sentence."""
    measured = [point.fleet for point in points if point.fleet.demand and point.fleet.ordered is not None]
    if not measured:
        return "How much is needed is not measured yet"
    below = sum(_is_below(fleet) for fleet in measured) / len(measured)
    targets = [point.fleet.target for point in points if point.fleet.target is not None]
    moves = sum(before != after for before, after in itertools.pairwise(targets))
    moved = f"; the target moved {'once' if moves == 1 else f'{moves} times'}" if moves else ""
    if below <= 0.005:
        return f"Capacity covered the demand the whole time{moved}"
    if below >= 0.995:
        return f"Capacity was below the demand the whole time{moved}"
    return f"Capacity was below the demand {formats.percent(below)} of the time{moved}"


def ratio_tone(now: FleetPoint) -> str:
    """How good the size is."""
    if now.demand is None or now.ordered is None or now.low is None or now.high is None:
        return ""
    return "bad" if now.ordered < now.low else "warn" if now.ordered > now.high else "good"


def ratio_note(now: FleetPoint) -> str:
    """What capacity against demand means."""
    if now.demand is None or now.ordered is None or now.low is None or now.high is None:
        return "Not measured yet: the first steps tell what is needed"
    if now.ordered < now.low:
        return f"Too small: {formats.rate(now.demand - now.ordered)} groups/s are missing"
    if now.ordered > now.high:
        return f"Larger than needed by {formats.rate(now.ordered - now.demand)} groups/s"
    return f"Right-sized: {formats.rate(now.ordered)} for {formats.rate(now.demand)} groups/s"


def nodes_note(now: FleetPoint) -> str:
    """How the fleet stands against its target."""
    if now.target is None:
        return "No target yet"
    there = now.nodes + now.pending
    if there < now.target:
        return f"{formats.several(now.target - there, 'node')} short of the target"
    if there > now.target:
        return f"{formats.several(there - now.target, 'node')} above the target"
    return f"At the target, {formats.several(now.pending, 'node')} on the way" if now.pending else "At the target"


def price_of(points: Sequence[Point]) -> float | None:
    """Dollars for a thousand accepted trajectories, over these points."""
    priced = [(point.fleet.dollars, point.fleet.price) for point in points]
    known = [(dollars, dollars / price) for dollars, price in priced if dollars and price]
    made = sum(amount for _, amount in known)
    return sum(dollars for dollars, _ in known) / made if made else None


def price_note(now: FleetPoint, report: Report) -> str:
    """Where the price comes from, or how to have one."""
    if now.dollars is None:
        name = next((pool.id for pool in report.pools), "NAME")
        return f"No price is known: set dataflow.pools.{name}.price_per_hour"
    return f"Rollout nodes cost {formats.dollars(now.dollars)} an hour"


def cost_text(now: FleetPoint) -> str:
    """What nodes cost now."""
    return formats.MISSING if now.dollars is None else f"{formats.dollars(now.dollars)}/h"


def pool_nodes(pool: PoolReport, report: Report) -> list[NodeReport]:
    """Nodes of a pool that are there."""
    there = (NodeState.JOINING, NodeState.READY, NodeState.DRAINING)
    return [node for node in report.nodes if node.facts.pool == pool.id and node.state in there]


def pool_yield(nodes: Sequence[NodeReport]) -> float | None:
    """Share of the episodes of these nodes that did not fail."""
    done = sum(node.counters.get("episodes_done", 0.0) for node in nodes)
    failed = sum(node.counters.get("episodes_failed", 0.0) for node in nodes)
    return done / (done + failed) if done + failed else None


def lag_counts(nodes: Sequence[NodeReport], report: Report) -> list[int]:
    """Nodes that are 0, 1, 2 and 3 or more versions behind."""
    counts = [0, 0, 0, 0]
    for node in nodes:
        lags = report.lag(node).values()
        if lags:
            counts[min(3, max(lags))] += 1
    return counts


def _pool_cells(pool: PoolReport, report: Report) -> Texts:
    advice = next((advised for advised in report.advice if advised.pool == pool.id), None)
    done, behind = _of_nodes(report, pool)
    total = sum(other.episodes_per_s for other in report.pools)
    dollars = pool_dollars(report, pool, advice)
    kept = _kept_per_s(pool, report, total)
    cells: Texts = {
        "share": (formats.percent(pool.episodes_per_s / total) if total else formats.MISSING, ""),
        "pending": (formats.count(pending_nodes(pool, advice)), ""),
        "target": (formats.count(advice.target if advice else None), ""),
        "yield": (formats.percent(done), ""),
        "lag": (formats.MISSING if behind is None else f"{behind:.1f} versions", ""),
        "cost": (f"{formats.dollars(dollars)}/h" if dollars else formats.MISSING, ""),
        "price": (formats.dollars(dollars / 3600 / kept * 1000) if dollars and kept else formats.MISSING, ""),
    }
    return {f"pool/{pool.id}/{name}": cell for name, cell in cells.items()}


@per_nodes(lambda report, pool: (pool.id, tuple(stream.version for stream in report.streams)))
def _of_nodes(report: Report, pool: PoolReport) -> tuple[float | None, float | None]:
    """Share of a pool's episodes that did not fail, and how many versions its nodes are behind on average."""
    nodes = pool_nodes(pool, report)
    lags = [max(found.values()) for node in nodes if (found := report.lag(node))]
    return pool_yield(nodes), sum(lags) / len(lags) if lags else None


def _kept_per_s(pool: PoolReport, report: Report, total: float) -> float:
    """Accepted trajectories per second of a pool: its share of all that are."""
    accepted = sum(stream.produced_per_s for stream in report.streams) * group_members(report)
    return accepted * pool.episodes_per_s / total if total else 0.0


def _is_below(fleet: FleetPoint) -> bool:
    return fleet.demand is not None and fleet.ordered is not None and fleet.ordered < fleet.demand
