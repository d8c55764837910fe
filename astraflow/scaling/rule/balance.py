"""Capacity relative to demand, with the band and the noise: the figures that decide every action."""

from dataclasses import dataclass, field
from statistics import median

import numpy as np

from astraflow.contract.fleet.recommendations import LimitInEffect, Reason
from astraflow.scaling.measurement.gates import is_gated
from astraflow.scaling.measurement.signals import Bools, Signals
from astraflow.scaling.options import Spec
from astraflow.scaling.rule.capacity import Capacity
from astraflow.scaling.rule.demand import CHANGE_SHARE, MAD_TO_SIGMA, Demand
from astraflow.scaling.rule.pools import Pool, overdue_of
from astraflow.scaling.rule.state import SizerState

MIN_RATIO_TICKS, MIN_RATIO_S = 5, 150.0
"""Minimum number of ticks, and their minimum duration in seconds, for the median of the ratio."""

BAND_LOW = 1.0
MIN_BAND_NODES = 1.5
"""Minimum width of the band in nodes, so that one node more or less never crosses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Capacity and demand at a tick. Rates in groups a second; nodes whose replacements are ordered do not count."""

    demand: Demand
    needed: float
    """Demand including the trim."""
    ready: float
    """Capacity of the ready nodes."""
    ordered: float
    """Capacity including pending nodes and nodes that the targets still lack."""
    ratio: float
    """Median of `ratios`."""
    ratios: tuple[float, ...]
    """Ordered capacity over demand at the latest ticks, oldest first."""
    compute_s: float
    """Compute time of a step at the oldest of `ratios`. Seconds."""
    noise: float
    target_ratio: float
    band_high: float
    best_node_rate: float
    """Rate of the fastest node."""
    is_staying: Bools
    """The node is ready and not being replaced. [node]"""

    @property
    def shortfall(self) -> float:
        """Capacity missing to the target ratio; negative for a surplus."""
        return self.target_ratio * self.needed - self.ordered

    @property
    def surplus(self) -> float:
        """Capacity of ready nodes beyond the target ratio."""
        return self.ready - self.target_ratio * self.needed


def balance_of(
    signals: Signals, spec: Spec, state: SizerState, *, demand: Demand, capacity: Capacity, pools: list[Pool]
) -> Balance:
    """Computes the figures of a tick."""
    nodes = signals.nodes
    being_replaced = np.array([node in state.being_replaced for node in nodes.ids], np.bool_)
    is_staying = nodes.is_ready & ~being_replaced
    is_arriving = nodes.is_pending & ~being_replaced & ~overdue_of(signals, pools)
    ready = capacity.of(is_staying)
    # Nodes that are being replaced count towards the targets until they leave.
    expected_nodes = sum(max(0, pool.expected_nodes) * pool.rate for pool in pools)
    ordered = ready + float(capacity.kind_rates[nodes.kind[is_arriving]].sum()) + expected_nodes
    needed = demand.groups_per_s * state.trim
    earlier = () if _has_changed(state, demand, capacity) else state.ratios
    ratios = (*earlier, ordered / needed)[-max(MIN_RATIO_TICKS, round(MIN_RATIO_S / spec.tick_s)) :]
    ratio = median(ratios)
    spread = MAD_TO_SIGMA * median(abs(earlier_ratio - ratio) for earlier_ratio in ratios)
    target_ratio = BAND_LOW + spec.options.headroom
    best_node_rate = max(
        [float(capacity.node_rates[is_staying].max())] if is_staying.any() else [pool.rate for pool in pools] or [0.0]
    )
    return Balance(
        demand=demand,
        needed=needed,
        ready=ready,
        ordered=ordered,
        ratio=ratio,
        ratios=ratios,
        compute_s=state.compute_s if earlier else demand.compute_s,
        noise=max((1 / max(1.0, capacity.groups) + demand.noise**2) ** 0.5, spread),
        target_ratio=target_ratio,
        band_high=max(spec.options.band_high, target_ratio + MIN_BAND_NODES * best_node_rate / needed),
        best_node_rate=best_node_rate,
        is_staying=is_staying,
    )


def _has_changed(state: SizerState, demand: Demand, capacity: Capacity) -> bool:
    """Returns whether steps or nodes have clearly changed, so that earlier ratios no longer apply.

    Steps are compared with those at the oldest ratio, because the usual step time is a median that follows a change
    gradually.
    """
    if capacity.uses_short_window and not state.uses_short_window:
        return True
    return bool(state.ratios) and abs(demand.compute_s / state.compute_s - 1) > CHANGE_SHARE


@dataclass(slots=True)
class Tick:
    """Working state of a tick. Actions change `pools`, `reasons`, `limited_by`, `victims` and `after` only."""

    signals: Signals
    spec: Spec
    before: SizerState
    capacity: Capacity
    pools: list[Pool]
    balance: Balance | None = None
    reasons: list[Reason] = field(default_factory=list)
    limited_by: list[LimitInEffect] = field(default_factory=list)
    victims: list[str] = field(default_factory=list)
    after: SizerState = field(default_factory=SizerState)
    rule: str = "sizer"

    @property
    def at(self) -> float:
        """Unix seconds."""
        return self.signals.at

    def recent(self, actions: tuple[float, ...]) -> list[float]:
        """Returns the actions within the window of the action budget."""
        return [action for action in actions if self.at - action < self.spec.options.action_window_s]

    def is_just_after(self, actions: tuple[float, ...]) -> bool:
        """Returns whether an action in the other direction would be a flap."""
        return any(self.at - action <= self.spec.options.action_window_s for action in actions)

    @property
    def is_gated(self) -> bool:
        """A trainer waits at the staleness gate, where more nodes would hardly help."""
        return is_gated(self.signals.gate, wait_high=self.spec.options.wait_high)

    @property
    def smallest_rate(self) -> float:
        """Rate of the slowest node that could be ordered. Groups a second."""
        return min((pool.rate for pool in self.pools if pool.rate > 0), default=0.0)
