"""What the sizer remembers from tick to tick; handed in and out, so that deciding stays a function."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.ids import PoolId


@dataclass(frozen=True, slots=True, kw_only=True)
class SizerState:
    """Times are Unix seconds, as in the signals."""

    targets: Mapping[PoolId, int] = field(default_factory=dict)
    presents: Mapping[PoolId, int] = field(default_factory=dict)
    """Nodes of each pool at the tick before."""
    missing_since: Mapping[PoolId, float] = field(default_factory=dict)
    """Since when a pool has had fewer nodes than its target, the gap not having grown."""
    shut_until: Mapping[PoolId, float] = field(default_factory=dict)
    """Pools that get no orders."""
    ratios: tuple[float, ...] = ()
    """Ordered capacity over demand at the latest ticks."""
    compute_s: float = 0.0
    """Of a step, when the oldest of those ratios was taken."""
    node_groups_per_s: float = 0.0
    """Of a busy node, when enough of them were measured last."""
    is_short: bool = False
    """Rates were taken over the short window."""
    low_ticks: int = 0
    high_ticks: int = 0
    """Above the band, less the ticks that were not."""
    is_settling: bool = False
    """Nodes were retired lately, and more are to go until there is little to spare."""
    trim: float = 1.0
    acted_at: float = float("-inf")
    trimmed_at: float = float("-inf")
    pending_at: float = float("-inf")
    """When a node was last on its way."""
    ups: tuple[float, ...] = ()
    downs: tuple[float, ...] = ()
    suspects: Mapping[str, float] = field(default_factory=dict)
    """Slow nodes, and since when they have been."""
    leaving: frozenset[str] = frozenset()
    """Nodes whose replacements are ordered."""
    plain_steps: int = 0
    """Trainer steps when the plain rule acted last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a tick."""

    advice: tuple[PoolAdvice, ...]
    state: SizerState
    moved: frozenset[PoolId] = frozenset()
    """Pools whose targets were decided to move; one that only follows nodes nobody ordered is not among them."""
