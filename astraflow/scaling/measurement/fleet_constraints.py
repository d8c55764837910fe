"""Applies the fleet service's constraints to the sizer's spec and signals, in place of configured values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.fleet.recommendations import FleetConstraints, PoolConstraints
from astraflow.contract.ids import PoolId
from astraflow.scaling.measurement.signals import LaunchSignals, Signals
from astraflow.scaling.options import PoolBudget, PoolOptions, Spec


def spec_with_constraints(spec: Spec, constraints: FleetConstraints) -> Spec:
    """Returns the spec with the fleet service's bounds, modes, prices, delays and budgets; the rest as configured.

    Raises: InvalidInput for impossible constraints.
    """
    money = {
        "max_dollars_per_hour": constraints.dollars_per_hour_max,
        "max_dollars_per_day": constraints.dollars_per_day_max,
    }
    budget = {name: value for name, value in money.items() if value is not None}
    return replace(
        spec,
        options=spec.options.parse(
            {**spec.options.model_dump(), **budget}, where="the constraints of the fleet service"
        ),
        pools={**spec.pools, **{pool.pool: _options(spec.pools, pool) for pool in constraints.pools}},
        is_kill_switch_on=constraints.is_kill_switch_on,
        held_pools=frozenset(pool.pool for pool in constraints.pools if pool.is_held),
        money={pool.pool: _money(pool) for pool in constraints.pools},
    )


def signals_with_constraints(signals: Signals, constraints: FleetConstraints) -> Signals:
    """Returns the signals with launch failures and costs from the fleet's ledger, which knows all launches."""
    launches = dict(signals.launches)
    for pool in constraints.pools:
        measured = launches.get(pool.pool, LaunchSignals())
        failed_at = signals.at if pool.failures else None
        launches[pool.pool] = replace(measured, failures=pool.failures, failed_at=failed_at)
    return replace(signals, launches=launches, dollars_today=constraints.dollars_today)


def limits_of(constraints: FleetConstraints) -> tuple[Any, ...]:
    """Returns the constraints that block or release pools; a change of them starts a tick at once."""
    return constraints.is_kill_switch_on, [
        (pool.pool, pool.mode, pool.min_nodes, pool.max_nodes, pool.is_held) for pool in constraints.pools
    ]


def _options(known: Mapping[PoolId, PoolOptions], pool: PoolConstraints) -> PoolOptions:
    configured = known[pool.pool].model_dump() if pool.pool in known else {}
    options = {
        "mode": pool.mode.value,
        "min_nodes": pool.min_nodes,
        "max_nodes": pool.max_nodes,
        "is_spot": pool.is_spot,
        "price_per_hour": pool.price_per_hour,
        "launch_delay_s": pool.launch_delay_s,
    }
    return PoolOptions.parse({**configured, **options}, where=f"the constraints of pool {pool.pool}")


def _money(pool: PoolConstraints) -> PoolBudget:
    """Returns the pool's budget. The rest of the daily budget must cover the next hour, as in the fleet's guard."""
    left = None if pool.dollars_per_day_max is None else max(0.0, pool.dollars_per_day_max - pool.dollars_today)
    paid = pool.dollars_per_hour / pool.nodes if pool.nodes else None
    return PoolBudget(dollars_per_hour=pool.dollars_per_hour_max, dollars_left_today=left, price_paid=paid)
