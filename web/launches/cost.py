"""Cost of a launch, from the bounds of its pools and the prices of their providers."""

from collections.abc import Sequence

from astraflow.contract.launching import PoolEstimate


def cost_of_nodes(usd_per_hour: float) -> str:
    """Returns the cost of nodes that the run starts itself.

    >>> cost_of_nodes(0.0), cost_of_nodes(2.5)
    ('nothing: its nodes run on this machine', '$2.50 an hour for its nodes')
    """
    return f"{_usd(usd_per_hour)} an hour for its nodes" if usd_per_hour else "nothing: its nodes run on this machine"


def cost_of_pools(
    pools: Sequence[PoolEstimate], *, usd_per_hour_max: float | None, usd_per_day_max: float | None, is_asked: bool
) -> str:
    """Returns the cost range of a fleet within its limits. is_asked: whether the providers were asked for prices."""
    unpriced = [pool for pool in pools if pool.node_usd_per_hour is None]
    limits = _limits(
        _smallest_limit(usd_per_hour_max, [pool.usd_per_hour_max for pool in pools]), usd_per_day_max, pools
    )
    if len(unpriced) == len(pools):
        state = "no provider reported its price" if is_asked else "requesting prices from its providers"
        return f"{_nodes(pools)}: {state}{limits}"
    high = _capped(sum(_most(pool) or 0.0 for pool in pools if pool not in unpriced), usd_per_hour_max)
    low = min(sum((pool.node_usd_per_hour or 0.0) * pool.min_nodes for pool in pools), high)
    if not high and not unpriced:
        return f"nothing: its providers charge nothing for {_nodes(pools)}"
    cost = f"{_usd(low)} an hour" if low == high else f"{_usd(low)} to {_usd(high)} an hour"
    others = f", plus {', '.join(pool.name for pool in unpriced)}, price unknown" if unpriced else ""
    return f"{cost} for {_nodes(pools)}{others}{limits}"


def largest_usd_per_hour(pools: Sequence[PoolEstimate], usd_per_hour_max: float | None) -> float | None:
    """Returns the largest cost of a fleet within its limits. US dollars per hour; None while neither prices nor limits
    bound it."""
    each = [_most(pool) for pool in pools]
    known = [usd for usd in each if usd is not None]
    return usd_per_hour_max if len(known) < len(each) else _capped(sum(known), usd_per_hour_max)


def instances_text(pools: Sequence[PoolEstimate]) -> str:
    """Returns the source of the nodes, pool by pool."""
    return "; ".join(
        f"{pool.name}: {_span(pool.min_nodes, pool.max_nodes)} of {pool.provider} ({pool.kind}), "
        f"{'elsewhere' if pool.is_remote else 'on this machine'}"
        for pool in pools
    )


def _nodes(pools: Sequence[PoolEstimate]) -> str:
    min_nodes, max_nodes = sum(pool.min_nodes for pool in pools), sum(pool.max_nodes for pool in pools)
    return f"{_span(min_nodes, max_nodes)} {'node' if max_nodes == 1 else 'nodes'}"


def _limits(per_hour: float | None, per_day: float | None, pools: Sequence[PoolEstimate]) -> str:
    per_day = _smallest_limit(per_day, [pool.usd_per_day_max for pool in pools])
    limits = [f"{_usd(most)} {per}" for most, per in ((per_hour, "an hour"), (per_day, "a day")) if most is not None]
    return f"; at most {' and '.join(limits)}" if limits else "; no budget limit"


def _smallest_limit(of_all: float | None, of_each: Sequence[float | None]) -> float | None:
    """Returns the limit of the sum: the common limit, or the sum of the pools' limits where each pool has one."""
    each = [limit for limit in of_each if limit is not None]
    bounds = [sum(each)] if each and len(each) == len(of_each) else []
    return min([*bounds, *([] if of_all is None else [of_all])], default=None)


def _most(pool: PoolEstimate) -> float | None:
    """Returns the largest cost of a pool within its limit. US dollars per hour; None without a price and a limit."""
    price = pool.node_usd_per_hour
    return pool.usd_per_hour_max if price is None else _capped(price * pool.max_nodes, pool.usd_per_hour_max)


def _capped(usd: float, most: float | None) -> float:
    return usd if most is None else min(usd, most)


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _usd(usd: float) -> str:
    return f"${usd:,.2f}"
