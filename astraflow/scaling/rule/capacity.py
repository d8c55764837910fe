"""Estimates what nodes can produce: finished groups over busy time, so that idle nodes count in full."""

from dataclasses import dataclass

import numpy as np

from astraflow.contract.ids import PoolId
from astraflow.scaling.measurement.signals import Bools, Floats, NodeTable, Signals
from astraflow.scaling.options import SizerOptions, Spec

OUTLIER_SIGMA = 3.5
"""Standard deviations of Poisson noise above which a count over the short window shows that rates have changed."""

STRAGGLER_SHARE = 0.5
STRAGGLER_SIGMA = 3.0
"""Share of the usual rate of its kind, and standard deviations, below which a node is suspect."""

MEASURED_S = 100.0
"""Minimum busy time of nodes that count for the usual rate of a kind."""

STALLED_GROUPS = 8.0
"""Groups that would usually have been finished, from which none at all shows that the nodes are stalled."""

ENOUGH_GROUPS = 30.0
"""Finished groups from which the mean node rate is kept."""

_TINY = 1e-9

_MIN_BUSY_S, _MAX_MEASURABLE = 1e-3, 1e9
"""Bounds of plausible busy times and counts within a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Capacity of nodes. Rates in groups a second."""

    node_rates: Floats
    """Rate of each node when busy: its own groups mixed with the mean of its kind. [node]"""
    kind_rates: Floats
    """Expected rate of an unmeasured node of each kind. [kind]"""
    groups: float
    """Groups finished over the window in use."""
    is_suspect: Bools
    """The node is clearly slower than others of its kind. [node]"""
    is_measured: bool
    """At least one node finished work while it was busy."""
    usual_node_rate: float
    """Mean rate of a busy node, updated when enough groups are measured."""
    uses_short_window: bool
    """Rates are measured over the short window because they have clearly changed."""
    overdue_groups: float
    """Groups that the busy nodes would usually have finished over a window in which they finished none. Count."""

    @property
    def is_stalled(self) -> bool:
        """The nodes are busy and finish nothing."""
        return self.overdue_groups >= STALLED_GROUPS

    def of(self, chosen: Bools) -> float:
        """Returns the total rate of the chosen nodes. chosen: [node]."""
        return float(self.node_rates[chosen].sum())


def capacity_of(signals: Signals, options: SizerOptions, *, usual: float = 0.0) -> Capacity:
    """Returns rates of nodes and kinds; a node with impossible counts gets the rate of its kind.

    usual: earlier rate of a busy node, mixed in while few groups are finished.
    """
    nodes = signals.nodes
    groups, busy_s, uses_short_window = _counts(nodes)
    is_counted = nodes.is_ready & (busy_s > 0)
    kinds = len(signals.kinds)
    # Unmeasured kinds get the rate of their hardware in other pools, and unmeasured hardware the mean of all nodes.
    total, total_busy_s = float(groups[is_counted].sum()), float(busy_s[is_counted].sum())
    overall = _rate(total, total_busy_s)
    if usual > 0:
        overall = _rate_with_prior(total, total_busy_s, usual, options.prior_groups)
    overall = overall if overall > _TINY**2 else 0.0
    hardware = [kind.hardware for kind in signals.kinds]
    by_kind = np.bincount(nodes.kind[is_counted], groups[is_counted], kinds)
    busy_by_kind = np.bincount(nodes.kind[is_counted], busy_s[is_counted], kinds)
    prior = options.prior_groups
    kind_rates = np.full(kinds, overall)
    if overall > 0:
        for index, name in enumerate(hardware):
            alike = [other for other, other_hardware in enumerate(hardware) if other_hardware == name]
            shared = _rate_with_prior(by_kind[alike].sum(), busy_by_kind[alike].sum(), overall, prior)
            kind_rates[index] = _rate_with_prior(by_kind[index], busy_by_kind[index], shared, prior)
    expected = kind_rates[nodes.kind] if kinds else np.zeros(0)
    node_rates = expected.copy()
    if overall > 0:
        node_rates[is_counted] = (groups[is_counted] + prior) / (busy_s[is_counted] + prior / expected[is_counted])
    return Capacity(
        node_rates=node_rates,
        kind_rates=kind_rates,
        groups=total,
        is_suspect=_suspects(nodes, groups, busy_s, is_counted, kinds),
        is_measured=overall > 0,
        usual_node_rate=overall if total >= ENOUGH_GROUPS else usual,
        uses_short_window=uses_short_window,
        overdue_groups=_overdue_groups(nodes, usual),
    )


def launch_delay_s(signals: Signals, spec: Spec, pool: PoolId) -> float:
    """Returns the 90th percentile of seconds from order to first task, with the configured delay as a prior."""
    configured = spec.pool(pool).launch_delay_s
    delays = signals.launches[pool].delays_s if pool in signals.launches else ()
    samples = [*delays, *[configured] * max(0, 5 - len(delays))]
    return float(np.quantile(samples, 0.9))


def price_of(signals: Signals, spec: Spec, kind: int) -> float:
    """Returns the price of a node of a kind. Dollars an hour; 0 when unknown."""
    node_kind = signals.kinds[kind]
    return spec.pool(node_kind.pool).price_per_hour or max(0.0, node_kind.price_per_hour)


def _counts(nodes: NodeTable) -> tuple[Floats, Floats, bool]:
    """Returns groups and busy seconds of each node, over the long window unless rates have clearly changed."""
    long, busy_long = _valid_counts(nodes.groups_long, nodes.busy_long_s)
    short, busy_short = _valid_counts(nodes.groups_short, nodes.busy_short_s)
    is_ready = nodes.is_ready
    before = _rate(long[is_ready].sum(), busy_long[is_ready].sum())
    expected = before * busy_short[is_ready].sum()
    if expected <= 0 or abs(short[is_ready].sum() - expected) <= OUTLIER_SIGMA * expected**0.5:
        return long, busy_long, False
    return short, busy_short, True


def _overdue_groups(nodes: NodeTable, usual: float) -> float:
    """Returns the groups that were due in the longest window without a finished one. usual: rate of a busy node."""
    windows = [
        (groups[nodes.is_ready].sum(), busy_s[nodes.is_ready].sum())
        for groups, busy_s in (
            _valid_counts(nodes.groups_long, nodes.busy_long_s),
            _valid_counts(nodes.groups_short, nodes.busy_short_s),
        )
    ]
    rate = max(usual, _rate(*windows[0]))
    return max((rate * float(busy_s) for groups, busy_s in windows if groups <= 0), default=0.0)


def _valid_counts(groups: Floats, busy_s: Floats) -> tuple[Floats, Floats]:
    """Returns both columns, with 0 where a value is implausible."""
    is_valid = (groups >= 0) & (groups < _MAX_MEASURABLE) & (busy_s >= _MIN_BUSY_S) & (busy_s < _MAX_MEASURABLE)
    has_groups = is_valid & (groups > _TINY)
    return np.where(has_groups, groups, 0.0), np.where(is_valid, busy_s, 0.0)


def _suspects(nodes: NodeTable, groups: Floats, busy_s: Floats, is_counted: Bools, kinds: int) -> Bools:
    """Compares nodes with the median of their kind, which is robust against a third of slow nodes."""
    is_suspect = np.zeros(len(nodes.ids), np.bool_)
    is_sure = is_counted & (busy_s >= MEASURED_S)
    for kind in range(kinds):
        alike = is_sure & (nodes.kind == kind)
        if np.count_nonzero(alike) < 3:
            continue
        usual = float(np.median(groups[alike] / busy_s[alike]))
        expected = usual * busy_s[alike]
        deviation = (groups[alike] - expected) / np.sqrt(np.maximum(expected, _TINY))
        is_suspect[alike] = (groups[alike] < STRAGGLER_SHARE * expected) & (deviation < -STRAGGLER_SIGMA)
    return is_suspect


def _rate(groups: float, busy_s: float) -> float:
    return float(groups) / float(busy_s) if busy_s > 0 else 0.0


def _rate_with_prior(groups: float, busy_s: float, mean: float, prior: float) -> float:
    return (float(groups) + prior) / (float(busy_s) + prior / mean)
