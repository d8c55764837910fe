"""What nodes can produce: groups finished over the time they were busy, so that idle nodes count in full."""

from dataclasses import dataclass

import numpy as np

from astraflow.contract.ids import PoolId
from astraflow.scaling.options import SizerOptions, Spec
from astraflow.scaling.signals import Bools, Floats, NodeTable, Signals

OUTLIER_SIGMA = 3.5
"""Of Poisson noise: a short count beyond this says that rates have changed."""

STRAGGLER_SHARE = 0.5
STRAGGLER_SIGMA = 3.0
"""A node is suspected below this share of what its like do, by so much more than chance."""

MEASURED_S = 100.0
"""A node that was busy for less says nothing about its like."""

ENOUGH_GROUPS = 30.0
"""So many groups tell the rate of a node well enough to be remembered."""

_TINY = 1e-9

_LEAST_S, _MOST = 1e-3, 1e9
"""What a node can have been busy for within a window, and what it can have finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Rates in groups a second."""

    node: Floats
    """Each node busy, its own few groups mixed with the mean of its like. [node]"""
    kind: Floats
    """A node of that kind, not measured yet. [kind]"""
    groups: float
    """Finished over the window that was used."""
    is_suspect: Bools
    """Clearly slower than its like. [node]"""
    is_measured: bool
    """Any node finished anything while it was busy."""
    remembered: float
    """Of a busy node on average, as far as enough of them are measured to go by it later."""
    is_short: bool
    """Over the short window: rates have clearly changed."""

    def of(self, chosen: Bools) -> float:
        """Of the chosen nodes together. chosen: [node]."""
        return float(self.node[chosen].sum())


def capacity_of(signals: Signals, options: SizerOptions, *, usual: float = 0.0) -> Capacity:
    """Rates of nodes and kinds; a row that cannot be right has the rate of its kind.

    usual: of a busy node, as measured earlier: while few groups are finished, it is mixed in.
    """
    nodes = signals.nodes
    groups, busy_s, is_short = _counts(nodes)
    is_counted = nodes.is_ready & (busy_s > 0)
    kinds = len(signals.kinds)
    # What is not measured at all is as its hardware is elsewhere, and that as all nodes are.
    total, total_busy_s = float(groups[is_counted].sum()), float(busy_s[is_counted].sum())
    overall = _rate(total, total_busy_s)
    if usual > 0:
        overall = _mixed(total, total_busy_s, usual, options.prior_groups)
    overall = overall if overall > _TINY**2 else 0.0
    hardware = [kind.hardware for kind in signals.kinds]
    by_kind = np.bincount(nodes.kind[is_counted], groups[is_counted], kinds)
    busy_by_kind = np.bincount(nodes.kind[is_counted], busy_s[is_counted], kinds)
    prior = options.prior_groups
    rates = np.full(kinds, overall)
    if overall > 0:
        for index, name in enumerate(hardware):
            alike = [other for other, given in enumerate(hardware) if given == name]
            shared = _mixed(by_kind[alike].sum(), busy_by_kind[alike].sum(), overall, prior)
            rates[index] = _mixed(by_kind[index], busy_by_kind[index], shared, prior)
    expected = rates[nodes.kind] if kinds else np.zeros(0)
    node = expected.copy()
    if overall > 0:
        node[is_counted] = (groups[is_counted] + prior) / (busy_s[is_counted] + prior / expected[is_counted])
    return Capacity(
        node=node,
        kind=rates,
        groups=total,
        is_suspect=_suspects(nodes, groups, busy_s, is_counted, kinds),
        is_measured=overall > 0,
        remembered=overall if total >= ENOUGH_GROUPS else usual,
        is_short=is_short,
    )


def launch_delay_s(signals: Signals, spec: Spec, pool: PoolId) -> float:
    """90th percentile from order to first task, as measured; what the options say counts as the first samples."""
    told = spec.pool(pool).launch_delay_s
    delays = signals.launches[pool].delays_s if pool in signals.launches else ()
    samples = [*delays, *[told] * max(0, 5 - len(delays))]
    return float(np.quantile(samples, 0.9))


def price_of(signals: Signals, spec: Spec, kind: int) -> float:
    """Dollars an hour for a node of a kind; 0 when unknown."""
    of = signals.kinds[kind]
    return spec.pool(of.pool).price_per_hour or max(0.0, of.price_per_hour)


def _counts(nodes: NodeTable) -> tuple[Floats, Floats, bool]:
    """Groups and busy seconds of each node, over the long window unless rates have clearly changed since."""
    long, busy_long = _sound(nodes.groups_long, nodes.busy_long_s)
    short, busy_short = _sound(nodes.groups_short, nodes.busy_short_s)
    is_ready = nodes.is_ready
    before = _rate(long[is_ready].sum(), busy_long[is_ready].sum())
    expected = before * busy_short[is_ready].sum()
    if expected <= 0 or abs(short[is_ready].sum() - expected) <= OUTLIER_SIGMA * expected**0.5:
        return long, busy_long, False
    return short, busy_short, True


def _sound(groups: Floats, busy_s: Floats) -> tuple[Floats, Floats]:
    """Both columns, 0 in the rows in which either is no count."""
    is_sound = (groups >= 0) & (groups < _MOST) & (busy_s >= _LEAST_S) & (busy_s < _MOST)
    is_any = is_sound & (groups > _TINY)
    return np.where(is_any, groups, 0.0), np.where(is_sound, busy_s, 0.0)


def _suspects(nodes: NodeTable, groups: Floats, busy_s: Floats, is_counted: Bools, kinds: int) -> Bools:
    """A node against the median of its kind, which a third of bad nodes does not move far."""
    found = np.zeros(len(nodes.ids), np.bool_)
    is_sure = is_counted & (busy_s >= MEASURED_S)
    for kind in range(kinds):
        alike = is_sure & (nodes.kind == kind)
        if np.count_nonzero(alike) < 3:
            continue
        usual = float(np.median(groups[alike] / busy_s[alike]))
        expected = usual * busy_s[alike]
        deviation = (groups[alike] - expected) / np.sqrt(np.maximum(expected, _TINY))
        found[alike] = (groups[alike] < STRAGGLER_SHARE * expected) & (deviation < -STRAGGLER_SIGMA)
    return found


def _rate(groups: float, busy_s: float) -> float:
    return float(groups) / float(busy_s) if busy_s > 0 else 0.0


def _mixed(groups: float, busy_s: float, mean: float, prior: float) -> float:
    return (float(groups) + prior) / (float(busy_s) + prior / mean)
