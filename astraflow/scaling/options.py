"""Configuration of the sizer: parameters of its rule, and bounds, prices and budgets of each pool."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, model_validator

from astraflow.contract.fleet.recommendations import DEFAULT_WAIT_HIGH, LimitInEffect, Mode
from astraflow.contract.ids import PoolId
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

MIN_TICK_S, MAX_TICK_S = 5.0, 30.0
"""Bounds of the default interval between decisions. Seconds."""

UNBOUNDED_NODES = 10_000
"""Maximum size of a pool without a configured maximum. Nodes."""


class SizerOptions(Config):
    """Parameters of the rule. Values that are measured (noise, launch delays, rates) are not configured."""

    rule: Annotated[Literal["sizer", "baseline"], SettableBy.AGENT] = "sizer"
    """`sizer`, or `baseline`: the published dead band on the trainer's wait."""
    tick_s: float | None = Field(default=None, ge=5, le=60)
    """Interval between decisions. Seconds. When absent: a quarter of the shortest launch delay, from 5 s to 30 s,
    because more frequent decisions do not make nodes start sooner."""
    window_long_s: float = Field(default=600.0, gt=0)
    """Window over which rates are measured, if it holds enough finished groups."""
    window_widest_s: float = Field(default=1800.0, gt=0)
    """Limit up to which the window grows until it holds `window_groups`."""
    window_groups: float = Field(default=250.0, gt=0)
    """Number of finished groups that a window must hold."""
    window_short_s: float = Field(default=180.0, gt=0)
    """Window over which rates are measured after they have clearly changed."""
    headroom: float = Field(default=0.08, ge=0, le=0.15)
    """Share of the demand that is ordered in addition: orders aim at demand * (1 + headroom)."""
    band_high: float = Field(default=1.25, gt=1)
    """Ratio of capacity to demand above which nodes are retired; higher in pools so small that one node exceeds it."""
    wait_high: float = Field(default=DEFAULT_WAIT_HIGH, gt=0, lt=1)
    """Share of time spent waiting by a trainer that confirms a lack of nodes."""
    wait_low: float = Field(default=0.02, ge=0, lt=1)
    """Share of time spent waiting below which a trainer counts as not waiting."""
    sustain_up_ticks: int = Field(default=2, ge=1)
    """Ticks below the band before nodes are ordered."""
    sustain_down_ticks: int = Field(default=10, ge=1)
    """Ticks above the band, minus the ticks inside it, before nodes are retired."""
    cold_start_steps: int = Field(default=4, ge=0)
    """Measured steps below which the demand is uncertain: orders then reach a part of it only. 0: any step suffices."""
    prior_groups: float = Field(default=10.0, ge=3, le=30)
    """Weight of the mean rate of a node's kind in the estimate of the node's rate. Groups."""
    trim_gain: float = Field(default=0.5, ge=0, le=1)
    """Share of a wait not explained by capacity that is added to the demand."""
    trim_max: float = Field(default=1.5, ge=1)
    """Maximum factor between assumed and measured demand."""
    scale_down_share: float = Field(default=0.25, gt=0, le=1)
    """Maximum share of the nodes that one action retires or replaces."""
    scale_ups_per_window: int = Field(default=2, ge=1)
    """Maximum number of scale-ups within `action_window_s`."""
    scale_downs_per_window: int = Field(default=1, ge=1)
    """Maximum number of scale-downs within `action_window_s`."""
    action_window_s: float = Field(default=600.0, gt=0)
    """Window in which scale-ups and scale-downs are counted."""
    pool_share: float = Field(default=0.7, gt=0, le=1)
    """Maximum share of the total capacity in one pool, while another pool can take orders."""
    breaker_failures: int = Field(default=3, ge=1)
    """Consecutive failed launches that open a pool's circuit breaker."""
    breaker_s: float = Field(default=600.0, gt=0)
    """Time for which a pool with an open circuit breaker gets no orders."""
    swap_back_after_s: float = Field(default=1800.0, gt=0)
    """Time after a pool's last failure before its nodes replace more expensive nodes of other pools."""
    base_on_demand: int = Field(default=0, ge=0)
    """Minimum number of on-demand nodes. Spot nodes do not count."""
    idle_after_s: float = Field(default=1200.0, gt=0)
    """Duration of a pause after which only the warm nodes remain."""
    max_nodes: Annotated[int, SettableBy.ADMIN] = Field(default=UNBOUNDED_NODES, ge=0)
    """Maximum number of nodes in all pools together."""
    max_dollars_per_hour: Annotated[float | None, SettableBy.ADMIN] = Field(default=None, ge=0)
    """Hourly budget of all pools together in US dollars; unlimited when absent."""
    max_dollars_per_day: Annotated[float | None, SettableBy.ADMIN] = Field(default=None, ge=0)
    """Daily budget of all pools together in US dollars; unlimited when absent."""


class PoolOptions(Config):
    """Bounds and prices of a pool."""

    mode: Mode = Mode.ADVISE
    """Extent to which recommendations are applied: `off` makes none, `advise` applies none, `up-only` applies larger
    targets, `on` applies all."""
    min_nodes: int = Field(default=0, ge=0)
    """Minimum number of nodes."""
    max_nodes: int = Field(ge=0)
    """Maximum number of nodes. Required, because it bounds the cost."""
    quota: int | None = Field(default=None, ge=0)
    """Number of nodes that the provider's quota allows; absent without a known quota."""
    warm_nodes: int = Field(default=1, ge=0)
    """Nodes kept at any price, so that launch failures show early; 0 allows an empty pool."""
    is_spot: bool = False
    """The provider may preempt the pool's nodes at short notice."""
    price_per_hour: float = Field(default=0.0, ge=0)
    """Price of a node. Dollars an hour; 0: the price that the nodes report."""
    launch_delay_s: float = Field(default=300.0, gt=0)
    """Assumed time from order to first task until delays are measured. Seconds."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "PoolOptions":
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"cannot use these bounds: min_nodes {self.min_nodes} is above max_nodes {self.max_nodes}")
        return self

    @property
    def floor(self) -> int:
        """Smallest target that the sizer recommends. Nodes."""
        return min(self.max_nodes, max(self.min_nodes, self.warm_nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBudget:
    """Budget of a pool in US dollars; None: no limit."""

    dollars_per_hour: float | None = None
    dollars_left_today: float | None = None
    """Rest of the daily budget: upper limit of what all nodes of the pool cost in the next hour."""
    price_paid: float | None = None
    """Mean price of the present nodes. Dollars an hour; None: unknown, and the price of a new node is assumed."""

    @property
    def order_limit(self) -> tuple[float, LimitInEffect]:
        """Dollars an hour up to which nodes are ordered, and the limit that sets it."""
        hourly = math.inf if self.dollars_per_hour is None else self.dollars_per_hour
        today = math.inf if self.dollars_left_today is None else self.dollars_left_today
        return (hourly, LimitInEffect.DOLLARS_PER_HOUR) if hourly <= today else (today, LimitInEffect.DOLLARS_PER_DAY)

    @property
    def retirement_limit(self) -> tuple[float, LimitInEffect]:
        """Dollars an hour above which nodes are retired, and the limit that sets it."""
        if self.dollars_left_today is not None and self.dollars_left_today <= 0:
            return 0.0, LimitInEffect.DOLLARS_PER_DAY
        return math.inf if self.dollars_per_hour is None else self.dollars_per_hour, LimitInEffect.DOLLARS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """All inputs of the sizer except signals and its own state."""

    options: SizerOptions = field(default_factory=SizerOptions)
    pools: Mapping[PoolId, PoolOptions] = field(default_factory=dict)
    """Options by pool. A pool with nodes but without options gets recommendations without bounds."""
    is_kill_switch_on: bool = False
    """The kill switch is on: no target changes."""
    held_pools: frozenset[PoolId] = frozenset()
    """Pools under a hold: none of their nodes is retired."""
    money: Mapping[PoolId, PoolBudget] = field(default_factory=dict)
    """Budget of each pool that has one."""

    @property
    def tick_s(self) -> float:
        """Interval between decisions. Seconds."""
        if self.options.tick_s is not None:
            return self.options.tick_s
        delays = [pool.launch_delay_s for pool in self.pools.values() if pool.mode is not Mode.OFF]
        return min(MAX_TICK_S, max(MIN_TICK_S, min(delays, default=math.inf) / 4))

    def pool(self, pool: PoolId) -> PoolOptions:
        return self.pools.get(pool) or _UNKNOWN_POOL


_UNKNOWN_POOL = PoolOptions(max_nodes=UNBOUNDED_NODES)
