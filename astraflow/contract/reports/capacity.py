"""Capacity of the nodes of this second against the demand of the trainers."""

import math
from dataclasses import dataclass

from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.fleet.recommendations import Mode, PoolRecommendation
from astraflow.contract.records import printed_rate
from astraflow.contract.reports.report import PoolReport, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityBalance:
    """Nodes by state, and what they can produce. Rates in groups per second; None where nothing is measured yet."""

    ready_nodes: int
    """Nodes that take tasks. Count."""
    pending_nodes: int
    """Nodes that join or were requested. Count."""
    lost_nodes: int
    """Nodes that dataflow still lists as lost. Count."""
    expected_nodes: int
    """Nodes that should be ready: the targets of the pools that are scaled, and the nodes of the others. Count."""
    demand: float | None = None
    """Groups that keep every trainer busy, as measured at the last tick of the sizer."""
    ready: float | None = None
    """Groups that the ready nodes of this second can produce: of each pool, its nodes times the rate of a node."""
    ordered: float | None = None
    """The same, with pending nodes."""

    @property
    def ratio(self) -> float | None:
        """Capacity of ready nodes over the demand, as both are printed; None while either is not measured."""
        if self.ready is None or not self.demand or not (demand := printed_rate(self.demand)):
            return None
        return printed_rate(self.ready) / demand

    @property
    def missing_nodes(self) -> int:
        """Nodes that should be ready and are not. Count."""
        return max(0, self.expected_nodes - self.ready_nodes)

    @property
    def node_rate(self) -> float | None:
        """Mean rate of a ready node."""
        return self.ready / self.ready_nodes if self.ready and self.ready_nodes else None


def capacity_balance(report: Report, fleet: FleetStatus | None = None) -> CapacityBalance:
    """Returns the balance of a report. fleet: the status of the fleet service, which knows the targets; None without
    one."""
    known = {recommendation.pool: recommendation for recommendation in report.recommendations}
    targets = {pool.spec.id: pool.target for pool in fleet.pools} if fleet is not None else {}
    rates = {pool: rate for pool, advice in known.items() if (rate := advice.inputs.get("node_groups_per_s"))}
    ready = {pool.id: pool.ready for pool in report.pools}
    pending = {pool.id: pending_nodes(pool, known.get(pool.id)) for pool in report.pools}
    expected = {
        pool: targets.get(pool, _scaled_target(known.get(pool), ready.get(pool, 0) + pending.get(pool, 0)))
        for pool in {*ready, *known, *targets}
    }
    ready_rate = sum(nodes * rates.get(pool, 0.0) for pool, nodes in ready.items())
    pending_rate = sum(nodes * rates.get(pool, 0.0) for pool, nodes in pending.items())
    return CapacityBalance(
        ready_nodes=sum(ready.values()),
        pending_nodes=sum(pending.values()),
        lost_nodes=sum(pool.lost for pool in report.pools),
        expected_nodes=sum(max(ready.get(pool, 0), nodes) for pool, nodes in expected.items()),
        demand=measured_input(report.recommendations, "demand_groups_per_s"),
        ready=ready_rate if rates else None,
        ordered=ready_rate + pending_rate if rates else None,
    )


def _scaled_target(advice: PoolRecommendation | None, present: int) -> int:
    """Returns the nodes that a pool should have: its target where that is applied, else the nodes that it has."""
    return advice.target if advice is not None and advice.mode in (Mode.ON, Mode.UP_ONLY) else present


def pending_nodes(pool: PoolReport, recommendation: PoolRecommendation | None) -> int:
    """Returns the pending nodes of a pool: joining ones, and those requested at the last tick."""
    requested = min(recommendation.pending, max(0, recommendation.present - pool.ready)) if recommendation else 0
    return max(pool.joining, requested)


def measured_input(recommendations: tuple[PoolRecommendation, ...], name: str) -> float | None:
    """Returns an input of the sizer, which is the same for all pools; None while it is not measured."""
    value = recommendations[0].inputs.get(name) if recommendations else None
    return value if value is not None and math.isfinite(value) else None
