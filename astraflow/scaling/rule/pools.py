"""Pools at one tick: nodes, bounds, and rate and price of a further node."""

from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from astraflow.scaling.measurement.signals import Bools, Floats, Signals
from astraflow.scaling.options import PoolBudget, PoolOptions, Spec
from astraflow.scaling.rule.capacity import Capacity, launch_delay_s, price_of
from astraflow.scaling.rule.state import SizerState

LONGEST_PENDING_S, SHORTEST_PENDING_S = 900.0, 60.0
"""Bounds of the time for which an order is awaited, unless the pool's usual delay is longer. Seconds."""

_USUAL_AND_MORE = 1.3


@dataclass(slots=True, kw_only=True)
class Pool:
    """Working state of a pool during a tick; actions change `target`."""

    id: PoolId
    options: PoolOptions
    ready: int
    pending: int
    """Nodes that are starting, as far as reported. Count."""
    overdue: int
    """Pending nodes that are later than the pool's patience. Count."""
    target: int
    rate: float
    """Expected rate of a further node. Groups a second."""
    price: float
    """Price of a further node. Dollars an hour; 0 when unknown."""
    delay_s: float
    """Usual time from order to first task. Seconds."""
    is_breaker_open: bool = False
    """The circuit breaker is open: the pool gets no orders."""
    is_breaker_half_open: bool = False
    """The latest launches failed: nodes are launched one at a time until one is ready."""
    is_held: bool = False
    """A hold is in effect: no node of the pool is retired."""
    money: PoolBudget = field(default_factory=PoolBudget)
    missing_s: float = 0.0
    """Time since when the pool has been below its target. Seconds."""

    @property
    def present(self) -> int:
        """Nodes that are ready, or pending and not overdue. Count."""
        return self.ready + self.pending - self.overdue

    @property
    def patience_s(self) -> float:
        """Age after which an order no longer counts. Seconds."""
        usual_s = min(2 * self.delay_s, max(LONGEST_PENDING_S, _USUAL_AND_MORE * self.delay_s))
        return max(SHORTEST_PENDING_S, usual_s)

    @property
    def expected_nodes(self) -> int:
        """Nodes of the target that are neither ready nor pending yet and may still arrive. Count."""
        return max(0, self.target - self.present) if self.missing_s <= self.patience_s else 0

    @property
    def max_nodes(self) -> int:
        """Maximum number of nodes by bounds and quota."""
        quota = self.options.quota
        return self.options.max_nodes if quota is None else max(self.options.floor, min(self.options.max_nodes, quota))

    @property
    def max_orderable_nodes(self) -> int:
        """Maximum number of nodes for orders; at a half-open breaker, one more than present."""
        return (
            min(self.max_nodes, max(self.options.floor, self.present + 1))
            if self.is_breaker_half_open
            else self.max_nodes
        )

    def dollars_per_hour(self, nodes: int) -> float:
        """Returns the cost of `nodes` nodes: present nodes at the price paid, further nodes at the current price."""
        if self.money.price_paid is None:
            return nodes * self.price
        present = min(nodes, self.ready + self.pending)
        return present * self.money.price_paid + (nodes - present) * self.price

    @property
    def effective_price(self) -> float:
        """Price of a further node per unit of work, up to a factor. Without prices, slow nodes count as expensive."""
        return (self.price or 1.0) / max(self.rate, 1e-12)

    @property
    def effective_price_paid(self) -> float:
        """The same for the present nodes."""
        paid = self.money.price_paid
        return self.effective_price if paid is None else (paid or 1.0) / max(self.rate, 1e-12)

    @property
    def may_shrink(self) -> bool:
        """Nodes of the pool may be retired."""
        return self.options.mode in (Mode.ADVISE, Mode.ON) and not self.is_held

    @property
    def may_grow(self) -> bool:
        """Nodes of the pool may be ordered."""
        return self.options.mode is not Mode.OFF


def pools_of(signals: Signals, spec: Spec, state: SizerState, capacity: Capacity) -> list[Pool]:
    """Returns the configured pools and those with nodes, by name, with the targets of the previous tick."""
    names = sorted({*spec.pools, *(kind.pool for kind in signals.kinds), *state.targets})
    return [_pool(name, signals, spec, state, capacity) for name in names]


def overdue_of(signals: Signals, pools: list[Pool]) -> Bools:
    """Returns which pending nodes are overdue. [node]"""
    patience = {pool.id: pool.patience_s for pool in pools}
    by_kind = np.array([patience[kind.pool] for kind in signals.kinds] or [0.0])
    nodes = signals.nodes
    return nodes.is_pending & ~(nodes.age_s <= by_kind[nodes.kind])


def effective_prices(signals: Signals, spec: Spec, capacity: Capacity) -> Floats:
    """Returns each node's price per unit of work, by its measured rate. [node]"""
    prices = np.array([price_of(signals, spec, kind) or 1.0 for kind in range(len(signals.kinds))] or [1.0])
    return prices[signals.nodes.kind] / np.maximum(capacity.node_rates, 1e-12)


def _pool(name: PoolId, signals: Signals, spec: Spec, state: SizerState, capacity: Capacity) -> Pool:
    nodes, options = signals.nodes, spec.pool(name)
    kinds = [index for index, kind in enumerate(signals.kinds) if kind.pool == name]
    members = np.isin(nodes.kind, kinds)
    ready = int(np.count_nonzero(members & nodes.is_ready))
    is_pending = members & nodes.is_pending
    counts = np.bincount(nodes.kind[members], minlength=len(signals.kinds))[kinds]
    usual_kind = kinds[int(counts.argmax())] if kinds else None
    rates, weights = (capacity.kind_rates[kinds], counts + 1e-3) if kinds else (capacity.kind_rates, None)
    pool = Pool(
        id=name,
        options=options,
        ready=ready,
        pending=int(np.count_nonzero(is_pending)),
        overdue=0,
        target=0,
        rate=float(np.average(rates, weights=weights)) if rates.size else 0.0,
        price=price_of(signals, spec, usual_kind) if usual_kind is not None else options.price_per_hour,
        delay_s=launch_delay_s(signals, spec, name),
        is_held=name in spec.held_pools,
        money=spec.money.get(name, PoolBudget()),
    )
    pool.overdue = int(np.count_nonzero(is_pending & ~(nodes.age_s <= pool.patience_s)))
    pool.target = _initial_target(pool, state)
    pool.missing_s = signals.at - state.missing_since[name] if name in state.missing_since else 0.0
    pool.is_breaker_open = _is_breaker_open(pool, signals, spec, state)
    launch = signals.launches.get(name)
    pool.is_breaker_half_open = launch is not None and launch.failures >= spec.options.breaker_failures
    return pool


def _initial_target(pool: Pool, state: SizerState) -> int:
    """Returns the target so far. It includes nodes that joined without an order, and at first all present nodes."""
    current = pool.ready + pool.pending
    if pool.options.mode is Mode.OFF or pool.id not in state.targets:
        return current
    target, previous = state.targets[pool.id], state.present_nodes.get(pool.id, 0)
    return min(current, max(target, target + current - previous)) if current > target and current > previous else target


def _is_breaker_open(pool: Pool, signals: Signals, spec: Spec, state: SizerState) -> bool:
    """Returns whether consecutive launch failures, an order that did not arrive or a spot shortage block orders."""
    if state.breaker_until.get(pool.id, 0.0) > signals.at:
        return True
    launch = signals.launches.get(pool.id)
    if launch is not None and launch.failed_at is not None and launch.failures >= spec.options.breaker_failures:
        return signals.at - launch.failed_at < spec.options.breaker_s
    return False
