"""What the sizer suggests for each pool, why, and from which figures: for pages, metrics, KEDA and whoever acts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.ids import NodeId, PoolId
from astraflow.contract.values import Json


class Mode(Enum):
    """How far advice about a pool may go."""

    OFF = "off"
    """Nothing is suggested: the target is what there is."""
    ADVISE = "advise"
    """Suggested, and nobody is meant to act on it by himself."""
    UP_ONLY = "up-only"
    """The target never falls."""
    ON = "on"


class Reason(Enum):
    """Why the target is what it is."""

    UNMEASURED = "unmeasured"
    """No step and no finished work to go by yet."""
    SWITCHED_OFF = "switched_off"
    """The pool's mode is off, or the kill switch is on."""
    STALE_INPUT = "stale_input"
    """Too many nodes are silent, or no step came for long: absence of data is no reason to shrink."""
    PAUSED = "paused"
    """Nothing is issued on somebody's word; the demand is as it was before."""
    IDLE = "idle"
    """The pause lasts: only the nodes that are to stay warm are kept."""
    INSIDE_BAND = "inside_band"
    CONFIRMING_UP = "confirming_up"
    """Below the band, not for long enough to act."""
    CONFIRMING_DOWN = "confirming_down"
    """Above the band, not for long enough to act."""
    BELOW_BAND = "below_band"
    TRAINER_WAITS = "trainer_waits"
    """Capacity is barely enough, and the trainer waits."""
    FAR_BELOW = "far_below"
    """Less than half of what is needed: acted on at once."""
    ABOVE_BAND = "above_band"
    KEPT_TO_CARRY = "kept_to_carry"
    """Above the band, but without any one node the rest could not carry the load."""
    WAITED_LATELY = "waited_lately"
    """Above the band, but the trainer waited within ten minutes: nothing is retired."""
    REPLACING = "replacing"
    """Replacements of slow or dear nodes are ordered first."""
    RETIRING = "retiring"
    """Replacements are up: what they replace may go."""
    TRIMMED = "trimmed"
    """The trainer waits although there seems to be enough: the demand is taken to be larger."""
    GATED = "gated"
    """The trainer waits while nodes stand at the staleness gate with empty slots: more of them hardly help."""
    LAUNCHES_FAIL = "launches_fail"
    """Orders do not arrive in this pool: they go elsewhere for a while."""
    BOUND = "bound"
    """The pool's own bounds moved the target."""
    PLAIN_RULE = "plain_rule"
    """The published dead band on the trainer's wait decided."""


class Cap(Enum):
    """What kept the target from where the demand would have it."""

    KILL_SWITCH = "kill_switch"
    MODE = "mode"
    MAX_NODES = "max_nodes"
    DOLLARS_PER_HOUR = "dollars_per_hour"
    DOLLARS_PER_DAY = "dollars_per_day"
    QUOTA = "quota"
    HOLD = "hold"
    """Somebody holds the pool: no node of it is taken away for a while."""
    BREAKER = "breaker"
    """Launches failed lately: none is ordered for a while."""
    ACTION_BUDGET = "action_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAdvice:
    """One pool, at one tick of the sizer."""

    pool: PoolId
    at: float
    """Unix seconds of the tick."""
    mode: Mode
    policy: str
    """Which rule decided: `sizer` or `plain`."""
    present: int
    """Nodes that take part or are on their way; those that drain are not among them."""
    pending: int
    """Of those, the ones that do not take tasks yet."""
    target: int
    band_low: float
    """Nodes below which more would be ordered, the other pools as they are."""
    band_high: float
    """Nodes above which some would be retired."""
    reasons: tuple[Reason, ...]
    """What decided first."""
    sentence: str
    """The same for people."""
    capped_by: tuple[Cap, ...] = ()
    victims: tuple[NodeId, ...] = ()
    """Nodes to retire first."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    """See `ADVICE_INPUTS`; a figure that is not measured is absent."""
    input_hash: str = ""
    """Of all the sizer was given: equal hashes, equal advice."""


ADVICE_INPUTS = {
    "demand_groups_per_s": "groups that must be produced each second to keep every trainer busy, trim included",
    "capacity_groups_per_s": "what nodes that take tasks produce each second when they are busy",
    "capacity_ordered_groups_per_s": "the same, with nodes that are on their way",
    "ratio": "ordered capacity over demand, median of the latest ticks",
    "noise": "how much the ratio wavers by chance",
    "band_low": "ratio below which more is ordered",
    "band_aim": "ratio that orders aim at",
    "band_high": "ratio above which some are retired",
    "trim": "factor on the demand, learned from trainers that wait although there seems to be enough",
    "compute_s": "of a step of the policy that needs most, without waiting",
    "groups_per_step": "fresh groups in its steps",
    "produced_per_usable": "groups produced for each one that its trainer can use",
    "wait_300_s": "share of the last 300 s for which its trainer waited",
    "wait_600_s": "the same, of 600 s",
    "gate_closed": "share of the latest steps' time for which the staleness gate let nothing out",
    "idle_slots": "of all nodes, empty on average in that time though their nodes asked for work",
    "slots": "of all nodes, on average in that time",
    "group_s": "from a group's issue to its last result, in that time",
    "staleness_needed": "bound on staleness, in versions, with which groups that take so long keep its trainer busy",
    "node_groups_per_s": "what another node of this pool is expected to produce",
    "price_per_hour": "dollars for one node of this pool; 0 when unknown",
}
"""Keys of `PoolAdvice.inputs`, and what they say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """What whoever runs a pool's machines says of it now. Money in US dollars, times in Unix seconds."""

    pool: PoolId
    mode: Mode
    min_nodes: int
    max_nodes: int
    is_spot: bool = False
    price_per_hour: float = 0.0
    """Of one more node, by its provider's quote; 0 where it costs nothing, or nothing is known."""
    launch_delay_s: float
    """Usual time from order to a node that works, more than 0."""
    is_held: bool = False
    """No node of it is taken away."""
    dollars_per_hour_max: float | None = None
    dollars_per_day_max: float | None = None
    """Of a day in UTC."""
    nodes: int = 0
    """There or ordered."""
    dollars_per_hour: float = 0.0
    """Of these."""
    dollars_today: float = 0.0
    """Spent on it since midnight UTC."""
    failures: int = 0
    """Launches in a row that failed."""
    shut_until: float | None = None
    """After failures: no launch is tried before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTerms:
    """What the fleet service tells dataflow, so that advice keeps to what would really be done."""

    pools: tuple[PoolTerms, ...]
    is_killed: bool = False
    """The kill switch stops everybody."""
    dollars_per_hour_max: float | None = None
    """Of all pools together."""
    dollars_per_day_max: float | None = None
    dollars_today: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfQuestion:
    """Other options for a run that is recorded: what would have been advised?"""

    options: Mapping[str, Json] = field(default_factory=dict)
    """Differences to `dataflow.scaling`."""
    pools: Mapping[str, Json] = field(default_factory=dict)
    """Differences to `dataflow.pools`: a table for each pool."""
    resolution_s: int = 60
    """1: every report of the last minutes; 60: the points of the whole run."""
    limit: int = 1440
    """Of the latest reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """What would have been advised, over the reports that are kept, and what that would have cost."""

    advice: tuple[PoolAdvice, ...] = ()
    """Each that moved a target, and the last of each pool; oldest first."""
    reports: int
    """How many were read; those without measured demand are not among them."""
    began_at: float
    ended_at: float
    """Unix seconds of the first and the last."""
    node_hours: Mapping[str, float]
    """By pool, had the advice been followed."""
    recorded_node_hours: Mapping[str, float]
    """By pool, as it was."""
    dollars: float
    recorded_dollars: float
    wait: float
    """Share of the time for which the trainer that needs most would have waited, as far as capacity explains it."""
    recorded_wait: float
    """Share for which it did, by the same measure: what capacity explains."""
