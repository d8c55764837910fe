"""State of the sizer between ticks. The caller passes it in and gets it back, so `decide` is a pure function."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.ids import PoolId


@dataclass(frozen=True, slots=True, kw_only=True)
class SizerState:
    """State of the sizer. Times are Unix seconds, as in the signals."""

    targets: Mapping[PoolId, int] = field(default_factory=dict)
    present_nodes: Mapping[PoolId, int] = field(default_factory=dict)
    """Nodes of each pool at the previous tick."""
    missing_since: Mapping[PoolId, float] = field(default_factory=dict)
    """Time since when a pool has been below its target without the gap growing."""
    breaker_until: Mapping[PoolId, float] = field(default_factory=dict)
    """Time until which a pool's circuit breaker is open and the pool gets no orders."""
    ratios: tuple[float, ...] = ()
    """Ratio of ordered capacity to demand at the latest ticks, oldest first."""
    compute_s: float = 0.0
    """Compute time of a step at the oldest of `ratios`. Seconds."""
    node_groups_per_s: float = 0.0
    """Rate of a busy node when it was last measured well enough. Groups a second."""
    uses_short_window: bool = False
    """Rates were measured over the short window."""
    low_ticks: int = 0
    high_ticks: int = 0
    """Ticks above the band minus the ticks that were not."""
    is_settling: bool = False
    """Nodes were retired recently; more follow until the surplus is small."""
    trim: float = 1.0
    acted_at: float = float("-inf")
    trimmed_at: float = float("-inf")
    pending_at: float = float("-inf")
    """Time at which a node was last pending."""
    scale_ups: tuple[float, ...] = ()
    scale_downs: tuple[float, ...] = ()
    suspects: Mapping[str, float] = field(default_factory=dict)
    """Slow nodes, with the time since when they have been slow."""
    being_replaced: frozenset[str] = frozenset()
    """Nodes whose replacements have been ordered."""
    baseline_steps: int = 0
    """Trainer steps at the baseline rule's last action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizerResult:
    """Result of a tick."""

    recommendations: tuple[PoolRecommendation, ...]
    state: SizerState
    changed_pools: frozenset[PoolId] = frozenset()
    """Pools whose targets the rule changed, without targets that only follow nodes that joined without an order."""
