"""Outputs of the tools: numbers, booleans, enum values and tokens. No text of nodes, providers or people."""

from typing import Literal

from pydantic import Field

from astraflow.contract.node_metrics import NODE_GAUGES
from maintainer.agent.tools.base import ToolModel

Cause = Literal[
    "none", "quota", "capacity", "auth", "price", "timeout", "memory", "disk", "network", "image", "engine",
    "preempted", "drained", "unknown",
]  # fmt: skip
"""Cause of a text by its words, chosen by code; the text itself is never shown."""

DepartureName = Literal["requested", "preempted", "lost", "failed", "expired", "inconsistent"]
"""Cause of a node's departure. requested: an actor retired it. preempted: its provider announced it. lost: no known
cause."""
InstanceStateName = Literal["intended", "pending", "running", "ready", "draining", "retiring", "suspect", "gone"]
ReportStateName = Literal["absent", "joining", "ready", "draining", "lost", "gone"]
ModeName = Literal["off", "advise", "up-only", "on"]
MaintainerModeName = Literal["off", "shadow", "propose", "auto"]
KillName = Literal["none", "agents", "all"]
RoleName = Literal["agent", "rule", "operator", "admin"]
VerdictName = Literal["allowed", "needs_approval", "refused"]
FindingCode = Literal[
    "kill_switch", "mode", "scope", "kill", "max_nodes", "min_nodes", "breaker", "usd_per_hour", "fleet_usd_per_hour",
    "usd_per_day", "fleet_usd_per_day", "rate", "cool_down", "rejected", "override", "last_ready", "stale", "undone",
    "envelope", "other",
]  # fmt: skip
ReasonName = Literal[
    "unmeasured", "switched_off", "stale_input", "stalled", "paused", "idle", "inside_band", "confirming_up",
    "confirming_down", "below_band", "trainer_waits", "far_below", "above_band", "needed_for_load", "replacing",
    "retiring", "trimmed", "trainer_waited_recently", "gated", "launches_failing", "pool_bounds", "partial_nodes",
    "plain_rule", "cold_start",
]  # fmt: skip
LimitName = Literal[
    "kill_switch", "mode", "max_nodes", "dollars_per_hour", "dollars_per_day", "quota", "override", "breaker",
    "action_budget"
]  # fmt: skip
SignalName = Literal["band_breach", "limit_reached", "launch_failures", "preemption_wave", "straggler", "no_report"]
DecisionKind = Literal[
    "apply", "refuse", "spec", "override", "escalate", "kill_switch", "orphan", "launch_failed", "fault", "propose",
    "reject", "note", "maintainer_mode", "node", "other",
]  # fmt: skip
ProposalStateName = Literal["none", "waiting", "approved", "rejected", "expired", "superseded"]
Outcome = Literal["applied", "proposed", "recorded", "refused", "conflict"]


_GAUGES = "; ".join(f"{name}: {metric.meaning}, {metric.unit}" for name, metric in NODE_GAUGES.items())


class Text(ToolModel):
    """Stands for a text of another author, which is not shown."""

    template: str
    """Equal for texts that differ only in numbers and names."""
    hash: str
    """Equal for identical texts."""
    length: int
    """Length of the text, characters."""
    cause: Cause
    """Cause that the words of the text indicate."""


class StreamView(ToolModel):
    """State of one trainer."""

    wait_fraction: float
    """Share of the last ten steps in which the trainer waited for data, 0 to 1."""
    is_waiting: bool
    """True while the trainer waits for data."""
    steps: int
    """Optimizer steps so far. Count."""
    buffered_groups: int
    """Groups that are ready for the trainer. Count."""


class PoolView(ToolModel):
    """State of one pool."""

    pool: str
    mode: ModeName
    """Mode of the rule and of agents in this pool."""
    provider: str
    type: str
    region: str
    is_spot: bool
    nodes: dict[InstanceStateName, int]
    """Instances by state. Counts."""
    target: int
    """Target of the last applied plan, nodes."""
    rule_target: int | None
    """Target that the rule recommends, nodes; null without a recommendation."""
    rule_reasons: list[ReasonName]
    """Reasons of the recommendation."""
    limited_by: list[LimitName]
    """Limits that keep the rule from the size that it needs."""
    band_low: float | None
    """Number of nodes below which the pool is too small; null without a recommendation."""
    band_high: float | None
    """Number of nodes above which the pool is too large; null without a recommendation."""
    min_nodes: int
    max_nodes: int
    usd_per_hour: float
    """Cost of the present instances, US dollars per hour."""
    usd_per_node_hour: float | None
    """Price of a node, US dollars per hour; null if unknown."""
    launch_delay_s: float
    """Usual time from a launch to a ready node, seconds."""
    override_left_s: float
    """Time for which a manual override prevents removals, seconds; 0 without one."""
    breaker_left_s: float
    """Time until launches are attempted again, seconds; 0 when they are attempted now."""
    launch_failures_1h: int
    """Launches that failed within the last hour. Count."""
    failure_causes: dict[Cause, int]
    """Failed launches by cause. Counts."""
    lost_nodes: int
    """Nodes from which dataflow receives no heartbeat now. Count."""
    losses_1h: dict[DepartureName, int]
    """Ready nodes that ended without a request within the last hour, by cause. Counts."""
    stragglers: int
    """Nodes with a straggler signal. Count."""
    node_episodes_per_s: float | None
    """Median speed of the pool's ready nodes, episodes per second; null without a ready node."""
    node_speed_share: float | None
    """Median speed of the pool's nodes over the best median speed of the same hardware in any pool; null with too few
    nodes. The rule compares only the nodes of one pool: when all of them are slow, only this value shows it."""
    proposal_state: ProposalStateName
    """State of the latest proposal of an agent within the last hour. waiting: make no plan for this pool."""
    proposal_target: int | None
    """Target of that proposal, nodes; null without one."""
    proposal_left_s: float
    """Time for which people can still decide on the proposal, seconds; 0 when they cannot."""
    rejected_age_s: float | None
    """Time since a person last rejected a proposal, seconds; null without a rejection within a day."""
    signals: list[SignalName]
    """Active signals of the pool."""


class PoolDetails(ToolModel):
    """Additional fields of one pool, in the detailed format."""

    pool: str
    version: int
    """Number of changes of the pool's record."""
    usd_today: float
    """Cost since 00:00 UTC, US dollars."""
    usd_per_hour_max: float | None
    """Hourly budget, US dollars per hour; null for none."""
    usd_per_day_max: float | None
    """Daily budget, US dollars; null for none."""
    episodes_per_s: float
    tokens_per_s: float
    inputs: dict[str, float]
    """Measured values from which the rule computed its recommendation."""
    node_speed_median: float | None
    """Median speed of the pool's ready nodes, episodes per second; null without a ready node."""
    last_change_age_s: float | None
    """Time since the last applied change, seconds; null without one."""


class ReportOutput(ToolModel):
    """Output of `fleet_report`."""

    report_age_s: float | None
    """Age of dataflow's report, seconds; null before the first report. Do not remove nodes because of an old report."""
    is_simulated: bool
    """True if parts of the run are simulated."""
    maintainer_mode: MaintainerModeName
    kill_switch: KillName
    usd_per_hour: float
    """Cost of all instances, US dollars per hour."""
    usd_today: float
    """Cost of all instances since 00:00 UTC, US dollars."""
    streams: list[StreamView]
    pools: list[PoolView]
    details: list[PoolDetails]
    """Additional fields per pool; empty in the concise format."""
    pools_left_out: int
    """Pools that this report leaves out; request one by its token. Count."""
    orphans: int
    """Instances without a launch in the ledger. Count."""
    problems: list[Text]
    """Current problems of the fleet service."""


class NodeView(ToolModel):
    """State of one node."""

    node: str
    pool: str
    state: InstanceStateName
    report_state: ReportStateName
    """State in dataflow's report; absent if the report does not contain the node."""
    type: str
    region: str
    is_spot: bool
    usd_per_hour: float
    age_s: float
    """Time since the launch was requested, seconds."""
    ready_age_s: float | None
    """Time since the node became ready, seconds; null if it never was."""
    episodes_per_s: float
    relative_speed: float | None
    """Speed of the node over the best median speed of the same hardware in any pool; null with too few nodes."""
    silence_s: float | None
    """Time since the last heartbeat, seconds; null if dataflow's report does not contain the node."""
    versions_behind: int
    """Versions between the newest weights and the weights of the node. Count."""
    lease_expiries: int
    """Leases of the node that expired. Count."""
    metrics: dict[str, float] = Field(description=f"Gauges that the node reports. {_GAUGES}.")
    is_straggler: bool
    """True if the node has a straggler signal."""
    departure_cause: DepartureName | None
    """Cause of the node's departure; null for a node that stays."""
    message: Text | None
    """Latest message about the instance; null for none."""
    errors: list[Text]
    """Errors that the node reported."""


class NodesOutput(ToolModel):
    """Output of `fleet_nodes`."""

    nodes: list[NodeView]
    matching: int
    """Nodes that match the filter, regardless of the limit. Count."""


class EventView(ToolModel):
    """One entry of the journal, or one event of the run."""

    decision: int | None
    """Number of the journal entry, for fleet_explain; null for an event of the run."""
    age_s: float
    """Time since the event, seconds."""
    kind: DecisionKind
    pool: str | None
    """Token of the pool; null for an event of no single pool."""
    by: RoleName | None
    """Role of the actor; null for an event of the run."""
    text: Text


class EventsOutput(ToolModel):
    """Output of `fleet_events`."""

    events: list[EventView]
    matching: int
    """Events that match, regardless of the limit. Count."""


class ExplainOutput(ToolModel):
    """Output of `fleet_explain`. Size fields are null for entries other than an applied plan."""

    decision: int
    age_s: float
    """Time since the decision, seconds."""
    kind: DecisionKind
    pool: str | None
    by: RoleName
    """Role of the actor."""
    nodes_before: int | None
    """Size of the pool before the change, nodes."""
    nodes_after: int | None
    """Size that the change requested, nodes."""
    launched: int | None
    """Launches that the change requested. Count."""
    retired: int | None
    """Nodes that the change drained or terminated. Count."""
    override_s: float | None
    """Duration of the manual override that the change set, seconds; 0 for none."""
    was_approved: bool
    """True if a person approved the plan."""
    message: Text
    reason: Text
    pool_now: PoolView | None
    """Current state of the pool; null if it does not exist."""


class FindingView(ToolModel):
    """Rule of the guard that does not allow the plan, or not without approval."""

    code: FindingCode
    verdict: VerdictName


class PlanOutput(ToolModel):
    """Output of `fleet_plan`."""

    plan_id: str
    """Argument of fleet_apply."""
    pool: str
    nodes_now: int
    """Present plus requested nodes. Count."""
    target: int
    """Size of the pool after the change, nodes."""
    launches: int
    """Nodes that the change launches. Count."""
    victims: list[str]
    """Tokens of the nodes that the change removes."""
    eta_s: float
    """Expected time until the change is complete, seconds."""
    usd_per_hour_change: float
    """Change of the cost, US dollars per hour."""
    verdict: VerdictName
    """Verdict of the guard. refused: do not apply the plan."""
    needs_approval: bool
    """True if fleet_apply proposes the plan to a person instead of applying it."""
    findings: list[FindingView]
    """Reasons of the verdict; empty for an allowed plan."""
    override_s: float
    """Duration of the manual override that the change sets because the rule's target is lower, seconds; 0 for none."""
    envelope_low: int
    """Smallest target that needs no approval because of its distance from the rule's target, nodes."""
    envelope_high: int
    """Largest target that needs no approval because of its distance from the rule's target, nodes."""
    expires_in_s: float
    """Time for which the plan can be applied, seconds."""


class ApplyOutput(ToolModel):
    """Output of `fleet_apply`."""

    plan_id: str
    outcome: Outcome
    """applied: the change was made. proposed: a person decides; do not retry. recorded: shadow mode, nothing was
    changed. refused, conflict: nothing was changed; do not retry in this wake."""
    launched: int
    """Launches that were requested. Count."""
    retired: int
    """Nodes that drain or terminate. Count."""
    decision: int | None
    """Number of the journal entry; null if nothing was changed."""
    applied_override_s: float
    """Duration of the manual override that the change set, seconds; 0 for none."""
    verify_after_s: float | None
    """Time until the result is verified, seconds; null if nothing was changed. The first message of the next
    wake lists missed targets."""


class DoneOutput(ToolModel):
    """Output of `fleet_override` and `fleet_escalate`."""

    outcome: Outcome
    """applied: done. recorded: shadow mode, nothing was changed."""
    decision: int | None
    """Number of the journal entry; null if nothing was changed."""
