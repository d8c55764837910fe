"""Capacity of the fleet against demand, from one report."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.ids import PoolId
from astraflow.contract.reports.capacity import capacity_balance, measured_input
from astraflow.contract.reports.report import NodeState, PoolReport, Report

T = TypeVar("T")
P = ParamSpec("P")

MAX_CACHED_RUNS = 8


def node_cache(
    key: Callable[Concatenate[Report, P], Hashable],
) -> Callable[[Callable[Concatenate[Report, P], T]], Callable[Concatenate[Report, P], T]]:
    """Caches a function of a report until the nodes of its run change.

    key: returns everything else that the result depends on. Per run, only results for the latest nodes are retained.
    """

    def decorate(read: Callable[Concatenate[Report, P], T]) -> Callable[Concatenate[Report, P], T]:
        cache: dict[str, tuple[object, dict[Hashable, Any]]] = {}

        @wraps(read)
        def cached(report: Report, /, *args: P.args, **more: P.kwargs) -> T:
            if report.run not in cache or cache[report.run][0] is not report.nodes:
                cache.pop(report.run, None)
                cache[report.run] = report.nodes, {}
                if len(cache) > MAX_CACHED_RUNS:
                    del cache[next(iter(cache))]
            answers, name = cache[report.run][1], key(report, *args, **more)
            if name not in answers:
                answers[name] = read(report, *args, **more)
            answer: T = answers[name]
            return answer

        return cached

    return decorate


HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPoint:
    """Figures of the fleet at one second. None where nothing is measured yet."""

    demand: float | None = None
    """Groups per second that keep every trainer busy."""
    ready: float | None = None
    """Groups per second that ready nodes can produce."""
    ordered: float | None = None
    """Groups per second that ready and pending nodes can produce."""
    low: float | None = None
    """Groups per second below which the fleet scales up."""
    high: float | None = None
    """Groups per second above which the fleet scales down."""
    aimed: float | None = None
    """Groups per second that the recommended nodes would produce."""
    ratio: float | None = None
    """Capacity of ready nodes over the demand."""
    nodes: int = 0
    """Ready nodes."""
    pending: int = 0
    """Pending nodes."""
    target: int | None = None
    """Recommended nodes of all pools."""
    dollars: float | None = None
    """Cost of the nodes in US dollars per hour; None while no price is known."""
    price: float | None = None
    """US dollars per thousand trajectories that were accepted for training."""


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
"""Names of the figures of a `FleetPoint`, in the order in which they are sent to the page."""


def fleet_point(report: Report) -> FleetPoint:
    """Returns the figures of a report: the capacity of its nodes against the demand at the sizer's last tick."""
    by_pool = {recommendation.pool: recommendation for recommendation in report.recommendations}
    balance = capacity_balance(report)
    dollars = sum(pool_dollars(report, pool, by_pool.get(pool.id)) for pool in report.pools)
    accepted_per_s = sum(stream.produced_per_s for stream in report.streams) * mean_group_size(report)
    return FleetPoint(
        demand=balance.demand,
        ready=balance.ready,
        ordered=balance.ordered,
        ratio=balance.ratio,
        **_band(balance.demand, report),
        aimed=_target_capacity(report.recommendations),
        nodes=balance.ready_nodes,
        pending=balance.pending_nodes,
        target=sum(recommendation.target for recommendation in report.recommendations)
        if report.recommendations
        else None,
        dollars=dollars or None,
        price=dollars / HOUR_S / accepted_per_s * 1000 if dollars and accepted_per_s > 0 else None,
    )


def pool_dollars(report: Report, pool: PoolReport, recommendation: PoolRecommendation | None) -> float:
    """Returns the cost of a pool's nodes in US dollars per hour; 0 while no price is known."""
    price = recommendation.inputs.get("price_per_hour", 0.0) if recommendation else 0.0
    nodes = pool.ready + pool.joining + pool.draining
    if price > 0:
        return nodes * price
    return _reported_dollars(report, pool.id)


@node_cache(lambda _, pool: pool)
def _reported_dollars(report: Report, pool: PoolId) -> float:
    """Returns the cost per hour that a pool's nodes report."""
    prices = (node.facts.price_per_hour for node in report.nodes if node.facts.pool == pool and _is_paid(node.state))
    return sum(prices)


def mean_group_size(report: Report) -> float:
    """Returns the mean number of trajectories per group over the run."""
    trained = [flow for flow in report.flows if flow.admitted or flow.dropped]
    groups = sum(flow.admitted + sum(flow.dropped.values()) for flow in trained)
    return sum(flow.episodes.get("accepted", 0) for flow in trained) / groups if groups else 0.0


def _band(demand: float | None, report: Report) -> dict[str, float | None]:
    low, high = (measured_input(report.recommendations, name) for name in ("band_low", "band_high"))
    if demand is None or low is None or high is None:
        return {"low": None, "high": None}
    return {"low": demand * low, "high": demand * high}


def _target_capacity(recommendations: tuple[PoolRecommendation, ...]) -> float | None:
    """Returns the capacity of the recommended nodes; None while the rate of a pool with a target is not measured."""
    used = [recommendation for recommendation in recommendations if recommendation.target > 0]
    if not used or any("node_groups_per_s" not in recommendation.inputs for recommendation in used):
        return None
    return sum(recommendation.target * recommendation.inputs["node_groups_per_s"] for recommendation in used)


def _is_paid(state: NodeState) -> bool:
    return state in (NodeState.JOINING, NodeState.READY, NodeState.DRAINING)
