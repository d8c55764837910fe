"""Sizer recommendations for each pool with their reasons and inputs: for pages, metrics, KEDA and the fleet service."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.ids import NodeId, PoolId
from astraflow.contract.record_causes import CAUSES
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, value_names
from astraflow.contract.values import Json, Value, Values


class Mode(Enum):
    """Extent to which the fleet service applies recommendations for a pool."""

    OFF = "off"
    """No recommendation: the target equals the present nodes."""
    ADVISE = "advise"
    """Recommends a target that nothing applies automatically."""
    UP_ONLY = "up-only"
    """Recommends no target below the present nodes."""
    ON = "on"


class Reason(Enum):
    """Reason for a target."""

    UNMEASURED = "unmeasured"
    """No trainer step and no finished work to measure yet."""
    SWITCHED_OFF = "switched_off"
    """The pool's mode is off or the kill switch is on."""
    STALE_INPUT = "stale_input"
    """Too many nodes are silent or no step came for a long time. Missing data is no reason to scale down."""
    STALLED = "stalled"
    """Nodes are in use and finish nothing, where many groups were due: more nodes would hang too."""
    PAUSED = "paused"
    """An operator paused the issue of tasks; the demand keeps its last value."""
    IDLE = "idle"
    """The pause has lasted: only the minimum of warm nodes remains."""
    INSIDE_BAND = "inside_band"
    CONFIRMING_UP = "confirming_up"
    """Below the band, but not for long enough to scale up."""
    CONFIRMING_DOWN = "confirming_down"
    """Above the band, but not for long enough to scale down."""
    BELOW_BAND = "below_band"
    COLD_START = "cold_start"
    """Capacity looks short, but too few steps are measured to order all that seems to be missing."""
    TRAINER_WAITS = "trainer_waits"
    """Capacity is barely sufficient and the trainer waits."""
    FAR_BELOW = "far_below"
    """Less than half of the needed capacity: scales up at once."""
    ABOVE_BAND = "above_band"
    NEEDED_FOR_LOAD = "needed_for_load"
    """Above the band, but the load is too high for the remaining nodes if any node is removed."""
    TRAINER_WAITED_RECENTLY = "trainer_waited_recently"
    """Above the band, but the trainer waited within the last ten minutes: no node is retired."""
    REPLACING = "replacing"
    """Requests replacements of slow or expensive nodes first."""
    RETIRING = "retiring"
    """Replacements are ready: the replaced nodes may retire."""
    TRIMMED = "trimmed"
    """The trainer waits although capacity looks sufficient: the demand estimate is raised."""
    GATED = "gated"
    """The trainer waits while nodes with empty slots are blocked by the staleness gate: more nodes hardly help."""
    LAUNCHES_FAILING = "launches_failing"
    """Launches fail in this pool: other pools get the requests for a while."""
    POOL_BOUNDS = "pool_bounds"
    """The pool's node bounds moved the target."""
    PARTIAL_NODES = "partial_nodes"
    """Some nodes serve some policies only. The rule compares the work of all nodes with the demand of all policies, so
    it moves no target of the run."""
    COMPLETE = "complete"
    """The run is complete: nodes that an autoscaler started would leave at once."""
    PLAIN_RULE = "plain_rule"
    """The plain rule decided: the published dead band on the trainer's wait."""


class LimitInEffect(Enum):
    """Limit that keeps the target away from the demand."""

    KILL_SWITCH = "kill_switch"
    MODE = "mode"
    MAX_NODES = "max_nodes"
    DOLLARS_PER_HOUR = "dollars_per_hour"
    DOLLARS_PER_DAY = "dollars_per_day"
    QUOTA = "quota"
    HOLD = "hold"
    """A hold is active: no node of the pool is removed until it ends."""
    BREAKER = "breaker"
    """Launches failed recently: no launch is tried for a while."""
    ACTION_BUDGET = "action_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecommendation:
    """Recommendation for one pool at one tick of the sizer."""

    pool: PoolId
    """Pool that the recommendation is for."""
    at: float
    """Unix seconds of the tick."""
    mode: Mode
    """Mode of the pool."""
    policy: str
    """Rule that decided: `sizer` or `plain`."""
    present: int
    """Ready plus starting nodes; draining nodes do not count."""
    pending: int
    """Nodes among `present` that do not take tasks yet."""
    target: int
    """Recommended size of the pool. Nodes."""
    band_low: float
    """Number of nodes below which the sizer scales up, with the other pools unchanged."""
    band_high: float
    """Number of nodes above which the sizer scales down."""
    reasons: tuple[Reason, ...]
    """The deciding reason first."""
    before: int = 0
    """Recommended size at the previous tick. Nodes."""
    limited_by: tuple[LimitInEffect, ...] = ()
    """Limits that keep the target away from the demand; empty for none."""
    victims: tuple[NodeId, ...] = ()
    """Nodes to retire first."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    """Measured inputs; keys in `RECOMMENDATION_INPUTS`. An unmeasured figure is absent."""
    figures: Values = field(default_factory=dict)
    """Values of the text of the deciding reason that are no inputs."""
    input_hash: str = ""
    """Hash of all inputs of the sizer: equal hashes mean equal recommendations."""

    @property
    def change(self) -> Record:
        """Record of the recommended size with its reason: a moved target, or one that stays."""
        kind = RecordKind.TARGET_LIMITED if self.target == self.before else RecordKind.TARGET_MOVED
        cause = self.reasons[0].value
        known: dict[str, Value] = {**self.inputs, **self.figures, "before": self.before, "target": self.target}
        names = value_names(kind.template) | value_names(CAUSES[cause])
        values = {name: known[name] for name in names if name in known}
        limits = {"limits": ",".join(limit.value for limit in self.limited_by)} if self.limited_by else {}
        return Record(kind=kind, subject=self.pool, actor=self.policy, cause=cause, values=values | limits)


DEFAULT_WAIT_HIGH = 0.08
"""Share of time up to which a trainer may wait, unless the sizer's option `wait_high` says otherwise."""

RECOMMENDATION_INPUTS = {
    "demand_groups_per_s": "groups per second that keep every trainer busy, trim included",
    "capacity_groups_per_s": "groups per second that nodes which take tasks produce when busy",
    "capacity_ordered_groups_per_s": "the same, plus nodes being started",
    "ratio": "capacity, nodes being started included, over demand; median of the latest ticks",
    "noise": "random variation of the ratio",
    "band_low": "ratio below which the sizer scales up",
    "band_aim": "ratio that scaling up aims at",
    "band_high": "ratio above which the sizer scales down",
    "trim": "factor on the demand, learned from trainers that wait although capacity looks sufficient",
    "compute_s": "seconds of one step of the policy with the largest demand, waiting excluded",
    "groups_per_step": "fresh groups in one step of that policy",
    "produced_per_usable": "groups produced per group that the trainer can use",
    "wait_share_300_s": "share of the last 300 s in which that policy's trainer waited",
    "wait_share_600_s": "share of the last 600 s in which that policy's trainer waited",
    "wait_high": "share of time spent waiting up to which a trainer counts as fed",
    "gate_closed": "share of the latest steps' time in which the staleness gate was closed",
    "idle_slots": "empty slots of all nodes, on average over the latest steps, although their nodes requested tasks",
    "slots": "slots of all nodes, on average over the latest steps",
    "group_s": "seconds from a group's issue to its last result, over the latest steps",
    "staleness_needed": "staleness bound, in versions, at which groups of that duration keep the trainer busy",
    "node_groups_per_s": "groups per second expected of one more node of this pool",
    "price_per_hour": "US dollars per hour for one node of this pool; 0 when unknown",
}
"""Keys of `PoolRecommendation.inputs` and their meanings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConstraints:
    """Current limits of a pool from the service that manages its instances. Money in US dollars, times in Unix
    seconds."""

    pool: PoolId
    mode: Mode
    min_nodes: int
    max_nodes: int
    is_spot: bool = False
    price_per_hour: float = 0.0
    """Provider's quote for one more node; 0 where it is free or unknown."""
    launch_delay_s: float
    """Usual time from request to ready node; more than 0."""
    is_held: bool = False
    """A hold is active: no node of the pool is removed."""
    dollars_per_hour_max: float | None = None
    dollars_per_day_max: float | None = None
    """Per day in UTC; None for no bound."""
    nodes: int = 0
    """Current plus requested nodes."""
    dollars_per_hour: float = 0.0
    """Cost of `nodes`."""
    dollars_today: float = 0.0
    """Spent on the pool since midnight UTC."""
    failures: int = 0
    """Consecutive failed launches."""
    breaker_until: float | None = None
    """No launch is tried before this time; None without recent failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConstraints:
    """Limits that the fleet service reports to dataflow, so that recommendations match what it would apply."""

    pools: tuple[PoolConstraints, ...]
    is_kill_switch_on: bool = False
    """The kill switch has scope `all`: nothing is launched or retired."""
    dollars_per_hour_max: float | None = None
    """Limit over all pools; None for no bound."""
    dollars_per_day_max: float | None = None
    dollars_today: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfQuestion:
    """Options for a replay of the sizer over a recorded run: which recommendations would it have made?"""

    options: Mapping[str, Json] = field(default_factory=dict)
    """Overrides of `dataflow.scaling`."""
    pools: Mapping[str, Json] = field(default_factory=dict)
    """Overrides of `dataflow.pools`: one table per pool."""
    resolution_s: int = 60
    """1 for every report of the last minutes, 60 for the points of the whole run."""
    limit: int = 1440
    """Largest number of reports to replay, the latest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """Recommendations of the replay over the recorded reports, and their costs."""

    recommendations: tuple[PoolRecommendation, ...] = ()
    """Recommendations that changed a target, and the last one of each pool; oldest first."""
    reports: int
    """Number of replayed reports; reports without measured demand do not count."""
    began_at: float
    ended_at: float
    """Unix seconds of the first and the last report."""
    node_hours: Mapping[str, float]
    """By pool, had the recommendations been applied."""
    recorded_node_hours: Mapping[str, float]
    """By pool, as recorded."""
    dollars: float
    recorded_dollars: float
    wait: float
    """Share of the time in which the trainer with the largest demand would have waited, as far as capacity explains
    it."""
    recorded_wait: float
    """Share in which it did wait, by the same measure."""
