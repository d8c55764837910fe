"""What a model is told: numbers, booleans, closed choices and tokens. No text of nodes, providers or people."""

from typing import Literal

from maintainer.tools.base import Typed

Cause = Literal[
    "none", "quota", "capacity", "auth", "price", "timeout", "memory", "disk", "network", "image", "engine",
    "preempted", "drained", "unknown",
]  # fmt: skip
"""What a text is about, as far as words in it tell: chosen by code, and never the text itself."""

DepartureName = Literal["ordered", "taken", "lost", "failed", "expired", "unclear"]
"""What made a node go: an order, its provider with a notice, nobody, ..."""
InstanceStateName = Literal["intended", "pending", "running", "ready", "draining", "retiring", "suspect", "gone"]
ReportStateName = Literal["absent", "joining", "ready", "draining", "lost", "gone"]
ModeName = Literal["off", "advise", "up-only", "on"]
MaintainerModeName = Literal["off", "shadow", "propose", "auto"]
KillName = Literal["none", "agents", "all"]
RoleName = Literal["agent", "rule", "operator", "admin"]
VerdictName = Literal["allowed", "needs_approval", "refused"]
FindingCode = Literal[
    "kill_switch", "mode", "scope", "kill", "max_nodes", "min_nodes", "breaker", "usd_per_hour", "fleet_usd_per_hour",
    "usd_per_day", "fleet_usd_per_day", "rate", "cool_down", "rejected", "hold", "last_ready", "stale", "undone",
    "envelope", "other",
]  # fmt: skip
ReasonName = Literal[
    "unmeasured", "switched_off", "stale_input", "paused", "idle", "inside_band", "confirming_up", "confirming_down",
    "below_band", "trainer_waits", "far_below", "above_band", "kept_to_carry", "replacing", "retiring", "trimmed",
    "waited_lately", "gated", "launches_fail", "bound", "plain_rule",
]  # fmt: skip
CapName = Literal[
    "kill_switch", "mode", "max_nodes", "dollars_per_hour", "dollars_per_day", "quota", "hold", "breaker",
    "action_budget"
]  # fmt: skip
SignalName = Literal["band_breach", "cap_hit", "launch_failures", "preemption_wave", "straggler", "blind"]
DecisionKind = Literal[
    "apply", "refuse", "spec", "hold", "escalate", "kill_switch", "orphan", "launch_failed", "fault", "propose",
    "reject", "note", "maintainer_mode", "node", "other",
]  # fmt: skip
ProposalStateName = Literal["none", "waiting", "approved", "rejected", "expired", "overtaken"]
Outcome = Literal["applied", "proposed", "recorded", "refused", "conflict"]


class Text(Typed):
    """A text that is not shown: enough to tell whether two are alike."""

    template: str
    """Equal for texts that differ in numbers and names only."""
    hash: str
    length: int
    """Characters."""
    cause: Cause


class StreamView(Typed):
    """One trainer."""

    wait_fraction: float
    """Share of the last ten steps for which it waited for data."""
    is_waiting: bool
    steps: int
    buffered_groups: int


class PoolView(Typed):
    """One pool."""

    pool: str
    mode: ModeName
    """Of the rule and of agents in this pool."""
    provider: str
    type: str
    region: str
    is_spot: bool
    nodes: dict[InstanceStateName, int]
    """Instances in each state."""
    target: int
    """By the last plan that was applied."""
    rule_target: int | None
    """What the rule advises; null while it says nothing."""
    rule_reasons: list[ReasonName]
    capped_by: list[CapName]
    """What kept the rule from where it wanted to be."""
    band_low: float | None
    """Nodes below which the pool is too small."""
    band_high: float | None
    """Nodes above which it is too large."""
    min_nodes: int
    max_nodes: int
    usd_per_hour: float
    usd_per_node_hour: float | None
    launch_delay_s: float
    hold_left_s: float
    breaker_left_s: float
    """Launches are not tried for so long; 0 when they are."""
    launch_failures_1h: int
    failure_causes: dict[Cause, int]
    """Of those."""
    lost_nodes: int
    """That are not heard now."""
    losses_1h: dict[DepartureName, int]
    """Nodes that worked and went without having been asked: taken by the provider with a notice, or lost."""
    stragglers: int
    node_episodes_per_s: float | None
    """What a node of it does, at the middle; null while none works."""
    node_speed_share: float | None
    """Of what nodes of the same hardware do in the pool where they do most; null while too few tell. The rule compares
    nodes of one pool: where all of them are slow, only this shows it."""
    proposal_state: ProposalStateName
    """Of the latest plan of an agent that people had before them within the hour. waiting: plan nothing here."""
    proposal_target: int | None
    proposal_left_s: float
    """For so long people can decide on it; 0 when they cannot any more."""
    rejected_age_s: float | None
    """Since people said no to one; null when they have not for a day."""
    signals: list[SignalName]
    """What is the matter now."""


class PoolDetails(Typed):
    """More of one pool, in the detailed format."""

    pool: str
    version: int
    usd_today: float
    usd_per_hour_max: float | None
    usd_per_day_max: float | None
    episodes_per_s: float
    tokens_per_s: float
    inputs: dict[str, float]
    """The rule's own figures."""
    node_speed_median: float | None
    """Episodes a second."""
    last_change_age_s: float | None


class ReportOutput(Typed):
    """`fleet_report`."""

    report_age_s: float | None
    """Of dataflow's report; null when none has come. Old figures are no ground for taking nodes away."""
    is_simulated: bool
    maintainer_mode: MaintainerModeName
    kill_switch: KillName
    usd_per_hour: float
    usd_today: float
    streams: list[StreamView]
    pools: list[PoolView]
    details: list[PoolDetails]
    """Empty in the concise format."""
    pools_left_out: int
    """More than fit; ask for one by its token."""
    orphans: int
    troubles: list[Text]


class NodeView(Typed):
    """One node."""

    node: str
    pool: str
    state: InstanceStateName
    report_state: ReportStateName
    """As dataflow sees it."""
    type: str
    region: str
    is_spot: bool
    usd_per_hour: float
    age_s: float
    ready_age_s: float | None
    episodes_per_s: float
    relative_speed: float | None
    """Over what nodes of its hardware do in the pool where they do most; null while too few tell."""
    silence_s: float | None
    """Since its last beat."""
    versions_behind: int
    lease_expiries: int
    is_straggler: bool
    goes_because: DepartureName | None
    """Null while it stays."""
    message: Text | None
    errors: list[Text]


class NodesOutput(Typed):
    """`fleet_nodes`."""

    nodes: list[NodeView]
    matching: int
    """All that match, whatever the limit."""


class EventView(Typed):
    """One entry of the journal, or one event of the run."""

    decision: int | None
    """Its number in the journal, for fleet_explain; null for an event of the run."""
    age_s: float
    kind: DecisionKind
    pool: str | None
    by: RoleName | None
    text: Text


class EventsOutput(Typed):
    """`fleet_events`."""

    events: list[EventView]
    matching: int


class ExplainOutput(Typed):
    """`fleet_explain`."""

    decision: int
    age_s: float
    kind: DecisionKind
    pool: str | None
    by: RoleName
    nodes_before: int | None
    nodes_after: int | None
    launched: int | None
    drained: int | None
    held_minutes: int | None
    """For so long it kept nodes of the pool from being taken away."""
    was_approved: bool
    message: Text
    reason: Text
    pool_now: PoolView | None
    """The pool as it is now."""


class FindingView(Typed):
    """A rule of the guard that the plan touches."""

    code: FindingCode
    verdict: VerdictName


class PlanOutput(Typed):
    """`fleet_plan`."""

    plan_id: str
    pool: str
    nodes_now: int
    target: int
    launches: int
    victims: list[str]
    eta_s: float
    usd_per_hour_change: float
    verdict: VerdictName
    needs_approval: bool
    findings: list[FindingView]
    hold_s: float
    """With it no node of the pool is taken away for so long: the rule wants fewer than this target. 0: no hold."""
    envelope_low: int
    """Targets from here"""
    envelope_high: int
    """to here need nobody's approval, as far as the distance from the rule's target goes."""
    expires_in_s: float


class ApplyOutput(Typed):
    """`fleet_apply`."""

    plan_id: str
    outcome: Outcome
    """applied: it is done. proposed: a person decides; do not try again. recorded: shadow mode, nothing happens.
    refused, conflict: nothing happened; do not try again in this wake."""
    launched: int
    retired: int
    decision: int | None
    """Its number in the journal."""
    held_s: float
    """No node of the pool is taken away for so long; 0 when this set no hold."""
    verify_after_s: float | None
    """You are told then what came of it."""


class DoneOutput(Typed):
    """`fleet_hold` and `fleet_escalate`."""

    outcome: Outcome
    decision: int | None
