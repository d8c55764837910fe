"""What there is to produce with, against what is needed: the fleet's figures of one report."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.ids import PoolId
from astraflow.contract.reports import NodeState, PoolReport, Report
from web.feed.per_nodes import per_nodes

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPoint:
    """The fleet at one second. None where nothing was measured yet."""

    demand: float | None = None
    """Groups that must be produced each second to keep every trainer busy."""
    ready: float | None = None
    """Groups that the nodes that take tasks can produce each second."""
    ordered: float | None = None
    """The same, with nodes that are on their way."""
    low: float | None = None
    """Groups per second below which more is ordered."""
    high: float | None = None
    """Groups per second above which some nodes are retired."""
    aimed: float | None = None
    """Groups per second that the advised nodes would produce."""
    ratio: float | None = None
    """Ordered capacity over demand."""
    nodes: int = 0
    """Nodes that take tasks."""
    pending: int = 0
    """Nodes on their way."""
    target: int | None = None
    """Nodes that are advised, over all pools."""
    dollars: float | None = None
    """What the nodes cost an hour; None while no price is known."""
    price: float | None = None
    """Dollars for a thousand trajectories that were accepted for training."""


FLEET_VALUES = (
    "demand",
    "ready",
    "ordered",
    "low",
    "high",
    "aimed",
    "ratio",
    "nodes",
    "pending",
    "target",
    "dollars",
    "price",
)
"""Names of the numbers of a `FleetPoint`, in the order in which they travel to the page."""


def fleet_point(report: Report) -> FleetPoint:
    """The fleet as this report has it. Demand and capacity are those of the sizer's last tick."""
    advice = {advised.pool: advised for advised in report.advice}
    pending = sum(pending_nodes(pool, advice.get(pool.id)) for pool in report.pools)
    dollars = sum(pool_dollars(report, pool, advice.get(pool.id)) for pool in report.pools)
    accepted_per_s = sum(stream.produced_per_s for stream in report.streams) * group_members(report)
    return FleetPoint(
        **_balance(report.advice[0].inputs if report.advice else {}),
        aimed=_aimed(report.advice),
        nodes=sum(pool.ready for pool in report.pools),
        pending=pending,
        target=sum(advised.target for advised in report.advice) if report.advice else None,
        dollars=dollars or None,
        price=dollars / HOUR_S / accepted_per_s * 1000 if dollars and accepted_per_s > 0 else None,
    )


def pending_nodes(pool: PoolReport, advice: PoolAdvice | None) -> int:
    """Nodes on their way to a pool: those that load their first version, and those only ordered at the last tick."""
    ordered = min(advice.pending, max(0, advice.present - pool.ready)) if advice else 0
    return max(pool.joining, ordered)


def pool_dollars(report: Report, pool: PoolReport, advice: PoolAdvice | None) -> float:
    """What a pool's nodes cost an hour; 0 while no price is known."""
    price = advice.inputs.get("price_per_hour", 0.0) if advice else 0.0
    there = pool.ready + pool.joining + pool.draining
    if price > 0:
        return there * price
    return _told_dollars(report, pool.id)


@per_nodes(lambda _, pool: pool)
def _told_dollars(report: Report, pool: PoolId) -> float:
    """What a pool's nodes say that they cost an hour."""
    told = (node.facts.price_per_hour for node in report.nodes if node.facts.pool == pool and _is_paid(node.state))
    return sum(told)


def group_members(report: Report) -> float:
    """Trajectories in a group, on average over the run."""
    trained = [flow for flow in report.flows if flow.admitted or flow.dropped]
    groups = sum(flow.admitted + sum(flow.dropped.values()) for flow in trained)
    return sum(flow.episodes.get("accepted", 0) for flow in trained) / groups if groups else 0.0


def _balance(inputs: Mapping[str, float]) -> dict[str, float | None]:
    demand = _measured(inputs, "demand_groups_per_s")
    low, high = inputs.get("band_low"), inputs.get("band_high")
    return {
        "demand": demand,
        "ready": _measured(inputs, "capacity_groups_per_s"),
        "ordered": _measured(inputs, "capacity_ordered_groups_per_s"),
        "low": demand * low if demand is not None and low is not None else None,
        "high": demand * high if demand is not None and high is not None else None,
        "ratio": _measured(inputs, "ratio"),
    }


def _aimed(advice: tuple[PoolAdvice, ...]) -> float | None:
    """What the targets would produce; None while the rate of a pool that is to have nodes is not measured."""
    wanted = [advised for advised in advice if advised.target > 0]
    if not wanted or any("node_groups_per_s" not in advised.inputs for advised in wanted):
        return None
    return sum(advised.target * advised.inputs["node_groups_per_s"] for advised in wanted)


def _measured(inputs: Mapping[str, float], name: str) -> float | None:
    value = inputs.get(name)
    return value if value is not None and math.isfinite(value) else None


def _is_paid(state: NodeState) -> bool:
    return state in (NodeState.JOINING, NodeState.READY, NodeState.DRAINING)
