"""What the fleet service says of its pools, put in the place of what the configuration says: one truth for both."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.advice import FleetTerms, PoolTerms
from astraflow.contract.ids import PoolId
from astraflow.scaling.options import PoolMoney, PoolOptions, Spec
from astraflow.scaling.signals import LaunchSignals, Signals


def spec_under(spec: Spec, terms: FleetTerms) -> Spec:
    """Bounds, modes, prices, delays and money as the fleet service has them; the rest as configured.

    Raises: InvalidInput for terms that cannot be.
    """
    money = {"max_dollars_per_hour": terms.dollars_per_hour_max, "max_dollars_per_day": terms.dollars_per_day_max}
    told = {name: value for name, value in money.items() if value is not None}
    return replace(
        spec,
        options=spec.options.parse({**spec.options.model_dump(), **told}, where="the fleet's terms"),
        pools={**spec.pools, **{pool.pool: _options(spec.pools, pool) for pool in terms.pools}},
        is_killed=terms.is_killed,
        held=frozenset(pool.pool for pool in terms.pools if pool.is_held),
        money={pool.pool: _money(pool) for pool in terms.pools},
    )


def signals_under(signals: Signals, terms: FleetTerms) -> Signals:
    """The same measurements, with the failures and the money of the ledger, which sees what never joined."""
    launches = dict(signals.launches)
    for pool in terms.pools:
        measured = launches.get(pool.pool, LaunchSignals())
        failed_at = signals.at if pool.failures else None
        launches[pool.pool] = replace(measured, failures=pool.failures, failed_at=failed_at)
    return replace(signals, launches=launches, dollars_today=terms.dollars_today)


def limits_of(terms: FleetTerms) -> tuple[Any, ...]:
    """What of it stops or frees a pool: when that changes, nobody should wait for the next tick."""
    return terms.is_killed, [(one.pool, one.mode, one.min_nodes, one.max_nodes, one.is_held) for one in terms.pools]


def _options(known: Mapping[PoolId, PoolOptions], terms: PoolTerms) -> PoolOptions:
    before = known[terms.pool].model_dump() if terms.pool in known else {}
    told = {
        "mode": terms.mode.value,
        "min_nodes": terms.min_nodes,
        "max_nodes": terms.max_nodes,
        "is_spot": terms.is_spot,
        "price_per_hour": terms.price_per_hour,
        "launch_delay_s": terms.launch_delay_s,
    }
    return PoolOptions.parse({**before, **told}, where=f"the fleet's terms of pool {terms.pool}")


def _money(terms: PoolTerms) -> PoolMoney:
    """What is left of the day lasts for an hour of everything, as the fleet's guard has it."""
    left = None if terms.dollars_per_day_max is None else max(0.0, terms.dollars_per_day_max - terms.dollars_today)
    paid = terms.dollars_per_hour / terms.nodes if terms.nodes else None
    return PoolMoney(per_hour=terms.dollars_per_hour_max, left_today=left, price_paid=paid)
