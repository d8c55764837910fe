"""The pools at one tick: what is in each, what it may hold, what another node of it does and costs."""

from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.advice import Mode
from astraflow.contract.ids import PoolId
from astraflow.scaling.capacity import Capacity, launch_delay_s, price_of
from astraflow.scaling.options import PoolMoney, PoolOptions, Spec
from astraflow.scaling.signals import Bools, Floats, Signals
from astraflow.scaling.state import SizerState

LONGEST_PENDING_S, SHORTEST_PENDING_S = 900.0, 60.0
"""No order is waited for longer, unless that is how long orders take, and none for less."""

_USUAL_AND_MORE = 1.3


@dataclass(slots=True, kw_only=True)
class Pool:
    """One pool while a tick is worked out: `target` moves."""

    id: PoolId
    options: PoolOptions
    ready: int
    pending: int
    """On their way, as far as anyone told."""
    overdue: int
    """Of those, the ones that are not waited for any more."""
    target: int
    rate: float
    """Groups a second of another node."""
    price: float
    """Dollars an hour of another node; 0 when unknown."""
    delay_s: float
    """Usual time from order to first task."""
    is_shut: bool = False
    """Gets no orders."""
    is_on_trial: bool = False
    """Its latest launches failed: one at a time, until one comes up."""
    is_held: bool = False
    """No node of it is taken away."""
    money: PoolMoney = field(default_factory=PoolMoney)
    missing_s: float = 0.0
    """For how long it has had fewer nodes than its target."""

    @property
    def present(self) -> int:
        """Nodes that take part or are waited for."""
        return self.ready + self.pending - self.overdue

    @property
    def patience_s(self) -> float:
        """An order that is older does not count."""
        usual_s = min(2 * self.delay_s, max(LONGEST_PENDING_S, _USUAL_AND_MORE * self.delay_s))
        return max(SHORTEST_PENDING_S, usual_s)

    @property
    def announced(self) -> int:
        """Nodes that the target asks for and nobody has seen yet, as long as they may still come."""
        return max(0, self.target - self.present) if self.missing_s <= self.patience_s else 0

    @property
    def most(self) -> int:
        """Bounds and quota."""
        quota = self.options.quota
        return self.options.max_nodes if quota is None else max(self.options.floor, min(self.options.max_nodes, quota))

    @property
    def most_ordered(self) -> int:
        """The same for orders."""
        return min(self.most, max(self.options.floor, self.present + 1)) if self.is_on_trial else self.most

    def dollars_per_hour(self, nodes: int) -> float:
        """Of so many: those that are there go on at their price, whatever another one would cost by now."""
        if self.money.price_paid is None:
            return nodes * self.price
        there = min(nodes, self.ready + self.pending)
        return there * self.money.price_paid + (nodes - there) * self.price

    @property
    def effective_price(self) -> float:
        """Dollars for what another node produces in an hour, up to a factor; without prices, the slow are the dear."""
        return (self.price or 1.0) / max(self.rate, 1e-12)

    @property
    def effective_price_paid(self) -> float:
        """The same of the nodes that are there."""
        paid = self.money.price_paid
        return self.effective_price if paid is None else (paid or 1.0) / max(self.rate, 1e-12)

    @property
    def may_fall(self) -> bool:
        """Whether nodes of it may be retired."""
        return self.options.mode in (Mode.ADVISE, Mode.ON) and not self.is_held

    @property
    def may_grow(self) -> bool:
        """Whether nodes of it may be ordered."""
        return self.options.mode is not Mode.OFF


def pools_of(signals: Signals, spec: Spec, state: SizerState, capacity: Capacity) -> list[Pool]:
    """Those that are told of and those that have nodes, by name; targets are the ones of the tick before."""
    names = sorted({*spec.pools, *(kind.pool for kind in signals.kinds), *state.targets})
    return [_pool(name, signals, spec, state, capacity) for name in names]


def overdue_of(signals: Signals, pools: list[Pool]) -> Bools:
    """Orders that are not waited for any more. [node]"""
    patience = {pool.id: pool.patience_s for pool in pools}
    by_kind = np.array([patience[kind.pool] for kind in signals.kinds] or [0.0])
    nodes = signals.nodes
    return nodes.is_pending & ~(nodes.age_s <= by_kind[nodes.kind])


def effective_prices(signals: Signals, spec: Spec, capacity: Capacity) -> Floats:
    """Of each node, by what it really does. [node]"""
    prices = np.array([price_of(signals, spec, kind) or 1.0 for kind in range(len(signals.kinds))] or [1.0])
    return prices[signals.nodes.kind] / np.maximum(capacity.node, 1e-12)


def _pool(name: PoolId, signals: Signals, spec: Spec, state: SizerState, capacity: Capacity) -> Pool:
    nodes, options = signals.nodes, spec.pool(name)
    kinds = [index for index, kind in enumerate(signals.kinds) if kind.pool == name]
    members = np.isin(nodes.kind, kinds)
    ready = int(np.count_nonzero(members & nodes.is_ready))
    waited_for = members & nodes.is_pending
    counts = np.bincount(nodes.kind[members], minlength=len(signals.kinds))[kinds]
    usual = kinds[int(counts.argmax())] if kinds else None
    rates, weights = (capacity.kind[kinds], counts + 1e-3) if kinds else (capacity.kind, None)
    pool = Pool(
        id=name,
        options=options,
        ready=ready,
        pending=int(np.count_nonzero(waited_for)),
        overdue=0,
        target=0,
        rate=float(np.average(rates, weights=weights)) if rates.size else 0.0,
        price=price_of(signals, spec, usual) if usual is not None else options.price_per_hour,
        delay_s=launch_delay_s(signals, spec, name),
        is_held=name in spec.held,
        money=spec.money.get(name, PoolMoney()),
    )
    pool.overdue = int(np.count_nonzero(waited_for & ~(nodes.age_s <= pool.patience_s)))
    pool.target = _adopted(pool, state)
    pool.missing_s = signals.at - state.missing_since[name] if name in state.missing_since else 0.0
    pool.is_shut = _is_shut(pool, signals, spec, state)
    launch = signals.launches.get(name)
    pool.is_on_trial = launch is not None and launch.failures >= spec.options.breaker_failures
    return pool


def _adopted(pool: Pool, state: SizerState) -> int:
    """The target so far. Nodes that came without being ordered are part of the pool; so is all there is at first."""
    seen = pool.ready + pool.pending
    if pool.options.mode is Mode.OFF or pool.id not in state.targets:
        return seen
    target, before = state.targets[pool.id], state.presents.get(pool.id, 0)
    return min(seen, max(target, target + seen - before)) if seen > target and seen > before else target


def _is_shut(pool: Pool, signals: Signals, spec: Spec, state: SizerState) -> bool:
    """Three failures in a row, an order that never came, or a spot market that has been short for a usual delay."""
    if state.shut_until.get(pool.id, 0.0) > signals.at:
        return True
    launch = signals.launches.get(pool.id)
    if launch is not None and launch.failed_at is not None and launch.failures >= spec.options.breaker_failures:
        return signals.at - launch.failed_at < spec.options.breaker_s
    return False
