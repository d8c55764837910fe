"""What the machines of a launch cost, from what its pools may be and what their providers ask."""

from collections.abc import Sequence

from web.launching.catalogue import PoolOffer


def cost_of_nodes(usd_per_hour: float) -> str:
    """Of nodes that the run starts itself.

    >>> cost_of_nodes(0.0), cost_of_nodes(2.5)
    ("nothing: its nodes are this machine's", '$2.50 an hour for its nodes')
    """
    return f"{_usd(usd_per_hour)} an hour for its nodes" if usd_per_hour else "nothing: its nodes are this machine's"


def cost_of_pools(
    pools: Sequence[PoolOffer], *, usd_per_hour_max: float | None, usd_per_day_max: float | None, is_asked: bool
) -> str:
    """Of a fleet, from its smallest to its largest, within its limits. is_asked: whether its providers were."""
    unknown = [pool.name for pool in pools if pool.node_usd_per_hour is None]
    limits = _limits(_least(usd_per_hour_max, [pool.usd_per_hour_max for pool in pools]), usd_per_day_max, pools)
    if len(unknown) == len(pools):
        said = "no provider said its price" if is_asked else "its providers are being asked for their prices"
        return f"{_nodes(pools)}: {said}{limits}"
    low = sum(_price(pool) * pool.min_nodes for pool in pools)
    high = sum(_capped(_price(pool) * pool.max_nodes, pool.usd_per_hour_max) for pool in pools)
    high = _capped(high, usd_per_hour_max)
    low = min(low, high)
    if not high and not unknown:
        return f"nothing: its providers ask nothing for {_nodes(pools)}"
    span = f"{_usd(low)} an hour" if low == high else f"{_usd(low)} to {_usd(high)} an hour"
    besides = f", and {', '.join(unknown)}, whose price is not known" if unknown else ""
    return f"{span} for {_nodes(pools)}{besides}{limits}"


def machines_of(pools: Sequence[PoolOffer]) -> str:
    """Where they come from, pool by pool."""
    return "; ".join(
        f"{pool.name}: {_span(pool.min_nodes, pool.max_nodes)} of {pool.provider} ({pool.kind}), "
        f"{'elsewhere' if pool.is_elsewhere else 'on this machine'}"
        for pool in pools
    )


def _nodes(pools: Sequence[PoolOffer]) -> str:
    least, most = sum(pool.min_nodes for pool in pools), sum(pool.max_nodes for pool in pools)
    return f"{_span(least, most)} {'node' if most == 1 else 'nodes'}"


def _limits(per_hour: float | None, per_day: float | None, pools: Sequence[PoolOffer]) -> str:
    per_day = _least(per_day, [pool.usd_per_day_max for pool in pools])
    limits = [f"{_usd(most)} {per}" for most, per in ((per_hour, "an hour"), (per_day, "a day")) if most is not None]
    return f"; never more than {' and '.join(limits)}" if limits else "; no budget bounds it"


def _least(of_all: float | None, of_each: Sequence[float | None]) -> float | None:
    """What bounds the sum: the limit of all, or the limits of each where each has one."""
    each = [limit for limit in of_each if limit is not None]
    bounds = [sum(each)] if each and len(each) == len(of_each) else []
    return min([*bounds, *([] if of_all is None else [of_all])], default=None)


def _price(pool: PoolOffer) -> float:
    return pool.node_usd_per_hour or 0.0


def _capped(usd: float, most: float | None) -> float:
    return usd if most is None else min(usd, most)


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _usd(usd: float) -> str:
    return f"${usd:,.2f}"
