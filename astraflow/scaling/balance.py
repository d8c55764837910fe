"""Capacity against demand, with its band and its noise: the figures that every move is decided on."""

from dataclasses import dataclass
from statistics import median

import numpy as np

from astraflow.scaling.capacity import Capacity
from astraflow.scaling.demand import CHANGED, SPREAD, Demand
from astraflow.scaling.options import Spec
from astraflow.scaling.pools import Pool, overdue_of
from astraflow.scaling.signals import Bools, Signals
from astraflow.scaling.state import SizerState

RATIOS, RATIOS_S = 5, 150.0
"""Ticks that the ratio is the median of, at least, and how long they last, at least."""

BAND_LOW = 1.0
NODES_OF_BAND = 1.5
"""The band is wider than one node of any size, so that one more or less never crosses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Rates in groups a second; nodes whose replacements are ordered do not count."""

    demand: Demand
    needed: float
    """Trim included."""
    ready: float
    ordered: float
    """With nodes on their way, and those that the targets ask for."""
    ratio: float
    ratios: tuple[float, ...]
    compute_s: float
    """Of a step, at the oldest of them."""
    noise: float
    aim: float
    band_high: float
    largest: float
    """What the best node does."""
    stays: Bools
    """Ready, and not to be replaced. [node]"""

    @property
    def lacking(self) -> float:
        """Up to the aim; negative when there is more."""
        return self.aim * self.needed - self.ordered

    @property
    def spare(self) -> float:
        """Of nodes that take tasks, beyond the aim."""
        return self.ready - self.aim * self.needed


def balance_of(
    signals: Signals, spec: Spec, state: SizerState, *, demand: Demand, capacity: Capacity, pools: list[Pool]
) -> Balance:
    """The figures of this tick."""
    nodes = signals.nodes
    leaving = np.array([node in state.leaving for node in nodes.ids], np.bool_)
    stays = nodes.is_ready & ~leaving
    coming = nodes.is_pending & ~leaving & ~overdue_of(signals, pools)
    ready = capacity.of(stays)
    # Those that are being replaced fill their places in the targets until they go.
    announced = sum(max(0, pool.announced) * pool.rate for pool in pools)
    ordered = ready + float(capacity.kind[nodes.kind[coming]].sum()) + announced
    needed = demand.groups_per_s * state.trim
    earlier = () if _has_changed(state, demand, capacity) else state.ratios
    ratios = (*earlier, ordered / needed)[-max(RATIOS, round(RATIOS_S / spec.tick_s)) :]
    ratio = median(ratios)
    spread = SPREAD * median(abs(one - ratio) for one in ratios)
    aim = BAND_LOW + spec.options.headroom
    largest = max([float(capacity.node[stays].max())] if stays.any() else [pool.rate for pool in pools] or [0.0])
    return Balance(
        demand=demand,
        needed=needed,
        ready=ready,
        ordered=ordered,
        ratio=ratio,
        ratios=ratios,
        compute_s=state.compute_s if earlier else demand.compute_s,
        noise=max((1 / max(1.0, capacity.groups) + demand.noise**2) ** 0.5, spread),
        aim=aim,
        band_high=max(spec.options.band_high, aim + NODES_OF_BAND * largest / needed),
        largest=largest,
        stays=stays,
    )


def _has_changed(state: SizerState, demand: Demand, capacity: Capacity) -> bool:
    """Steps or nodes are clearly not what they were: earlier ratios are about something else.

    Steps are compared with those of the oldest of the ratios: the usual time of a step is a median, and a change goes
    through it little by little.
    """
    if capacity.is_short and not state.is_short:
        return True
    return bool(state.ratios) and abs(demand.compute_s / state.compute_s - 1) > CHANGED
