"""What the sizer is told: the numbers of its rule, and what each pool may cost and hold."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, model_validator

from astraflow.contract.advice import Cap, Mode
from astraflow.contract.ids import PoolId
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy

LEAST_TICK_S, MOST_TICK_S = 5.0, 30.0
"""Between them is the time between decisions, unless somebody says otherwise."""

UNBOUNDED_NODES = 10_000
"""What a pool may hold of which nobody said how much."""


class SizerOptions(Config):
    """The rule's numbers. Those that follow from measurements (noise, launch delays, rates) are not here."""

    policy: Literal["sizer", "plain"] = "sizer"
    """`plain` is the published dead band on the trainer's wait."""
    tick_s: float | None = Field(default=None, ge=5, le=60)
    """Between two decisions; a quarter of the shortest usual launch delay when absent, from 5 s to 30 s: what is
    ordered comes no sooner for being decided on more often."""
    window_long_s: float = Field(default=600.0, gt=0)
    """Over which rates are measured, if enough groups are finished in it."""
    window_widest_s: float = Field(default=1800.0, gt=0)
    """It is widened up to this until there are `window_groups`."""
    window_groups: float = Field(default=250.0, gt=0)
    window_short_s: float = Field(default=180.0, gt=0)
    """Over which they are when they have clearly changed."""
    headroom: float = Field(default=0.08, ge=0, le=0.15)
    """Orders aim at the demand times one plus this."""
    band_high: float = Field(default=1.25, gt=1)
    """Capacity over demand above which nodes are retired; raised for pools so small that one node is more."""
    wait_high: float = Field(default=0.08, gt=0, lt=1)
    """Share of time for which a trainer waits that confirms a lack of nodes."""
    wait_low: float = Field(default=0.02, ge=0, lt=1)
    """Below this nobody waits."""
    sustain_up_ticks: int = Field(default=2, ge=1)
    """So many ticks below the band before more are ordered."""
    sustain_down_ticks: int = Field(default=10, ge=1)
    """So many ticks above it, less those that are not, before some are retired."""
    prior_groups: float = Field(default=10.0, ge=3, le=30)
    """Groups' worth of the mean of its type that a node's own rate is mixed with."""
    trim_gain: float = Field(default=0.5, ge=0, le=1)
    """How much of a wait that capacity does not explain is added to the demand."""
    trim_max: float = Field(default=1.5, ge=1)
    """The demand is never taken to be larger than measured by more than this factor."""
    down_share: float = Field(default=0.25, gt=0, le=1)
    """Largest part of the nodes that is retired, or replaced, at once."""
    ups_per_window: int = Field(default=2, ge=1)
    """Orders within `action_window_s`."""
    downs_per_window: int = Field(default=1, ge=1)
    action_window_s: float = Field(default=600.0, gt=0)
    pool_share: float = Field(default=0.7, gt=0, le=1)
    """Largest part of all capacity in one pool, while another is in order."""
    breaker_failures: int = Field(default=3, ge=1)
    """So many failed launches in a row turn orders away from a pool."""
    breaker_s: float = Field(default=600.0, gt=0)
    return_s: float = Field(default=1800.0, gt=0)
    """So long after a pool's last failure, nodes that were ordered elsewhere at a higher price are swapped back."""
    base_on_demand: int = Field(default=0, ge=0)
    """Nodes that are never left to the spot market."""
    idle_after_s: float = Field(default=1200.0, gt=0)
    """A pause that lasts longer leaves only the warm nodes."""
    max_nodes: Annotated[int, SetBy.ADMIN] = Field(default=UNBOUNDED_NODES, ge=0)
    """Of all pools together."""
    max_dollars_per_hour: Annotated[float | None, SetBy.ADMIN] = Field(default=None, ge=0)
    max_dollars_per_day: Annotated[float | None, SetBy.ADMIN] = Field(default=None, ge=0)


class PoolOptions(Config):
    """Bounds and prices of one pool."""

    mode: Mode = Mode.ADVISE
    min_nodes: int = Field(default=0, ge=0)
    max_nodes: int = Field(ge=0)
    """Required: nobody else knows what may be spent here."""
    quota: int | None = Field(default=None, ge=0)
    """What the provider lets out, where that is less."""
    warm_nodes: int = Field(default=1, ge=0)
    """Kept whatever the price, so that the pool is known to work; 0 lets it become empty."""
    is_spot: bool = False
    """Its nodes may be taken away at short notice."""
    price_per_hour: float = Field(default=0.0, ge=0)
    """Dollars for a node; 0: what its nodes say."""
    launch_delay_s: float = Field(default=300.0, gt=0)
    """From order to first task, until it has been measured."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "PoolOptions":
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes {self.min_nodes} is above max_nodes {self.max_nodes}")
        return self

    @property
    def floor(self) -> int:
        """Fewest nodes it is ever advised to have."""
        return min(self.max_nodes, max(self.min_nodes, self.warm_nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMoney:
    """US dollars that a pool may cost; None for without a bound."""

    per_hour: float | None = None
    left_today: float | None = None
    """The next hour of all its nodes may cost no more."""
    price_paid: float | None = None
    """Of a node that is there, on average; None where it is not told: then what another one would cost."""

    @property
    def cap(self) -> tuple[float, Cap]:
        """Dollars an hour up to which more is ordered, and by which cap."""
        hourly = math.inf if self.per_hour is None else self.per_hour
        today = math.inf if self.left_today is None else self.left_today
        return (hourly, Cap.DOLLARS_PER_HOUR) if hourly <= today else (today, Cap.DOLLARS_PER_DAY)

    @property
    def limit(self) -> tuple[float, Cap]:
        """Dollars an hour above which nodes are retired, and by which cap."""
        if self.left_today is not None and self.left_today <= 0:
            return 0.0, Cap.DOLLARS_PER_DAY
        return math.inf if self.per_hour is None else self.per_hour, Cap.DOLLARS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """All that the sizer is told besides signals and its own state."""

    options: SizerOptions = field(default_factory=SizerOptions)
    pools: Mapping[PoolId, PoolOptions] = field(default_factory=dict)
    """A pool that is not here, but has nodes, is only ever advised on, without bounds."""
    is_killed: bool = False
    """The kill switch: no target moves."""
    held: frozenset[PoolId] = frozenset()
    """Pools of which no node is taken away for now."""
    money: Mapping[PoolId, PoolMoney] = field(default_factory=dict)
    """Of each pool that has bounds of its own."""

    @property
    def tick_s(self) -> float:
        """Between two decisions."""
        if self.options.tick_s is not None:
            return self.options.tick_s
        delays = [pool.launch_delay_s for pool in self.pools.values() if pool.mode is not Mode.OFF]
        return min(MOST_TICK_S, max(LEAST_TICK_S, min(delays, default=math.inf) / 4))

    def pool(self, pool: PoolId) -> PoolOptions:
        """A pool's options."""
        return self.pools.get(pool) or _UNKNOWN_POOL


_UNKNOWN_POOL = PoolOptions(max_nodes=UNBOUNDED_NODES)
