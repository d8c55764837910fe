"""Outputs of the tools: numbers, booleans, enum values and tokens. No text of nodes, providers or people."""

from enum import Enum

from pydantic import Field

from astraflow.contract.fleet.instances import Cause, InstanceState
from astraflow.contract.fleet.maintainer import MaintainerMode, ProposalState
from astraflow.contract.fleet.plans import GuardRule, Role, Verdict
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import LimitInEffect, Mode, Reason
from astraflow.contract.fleet.run_changes import RunAction
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.node_metrics import NODE_GAUGES
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.reports.diagnosis import LimitingCause, Stage
from astraflow.contract.reports.report import NodeState
from maintainer.agent.observation.signals import SignalKind
from maintainer.agent.tools.base import ToolModel


class ErrorCategory(Enum):
    """Category of a text of another author, chosen by its words; the text itself is never shown."""

    NONE = "none"
    QUOTA = "quota"
    CAPACITY = "capacity"
    AUTH = "auth"
    PRICE = "price"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    IMAGE = "image"
    ENGINE = "engine"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    UNKNOWN = "unknown"


class ActionOutcome(Enum):
    """Outcome of an action."""

    APPLIED = "applied"
    PROPOSED = "proposed"
    RECORDED = "recorded"
    """Shadow mode: nothing was changed."""
    REFUSED = "refused"
    CONFLICT = "conflict"


_GAUGES = "; ".join(f"{name}: {metric.meaning}, {metric.unit}" for name, metric in NODE_GAUGES.items())


class Text(ToolModel):
    """Stands for a text of another author, which is not shown."""

    template: str
    """Equal for texts that differ only in numbers and names."""
    hash: str
    """Equal for identical texts."""
    length: int
    """Length of the text, characters."""
    cause: ErrorCategory
    """Cause that the words of the text indicate."""


class ProblemView(ToolModel):
    """One problem of a service."""

    severity: Severity
    cause: str | None
    """Word for the cause; null where the kind itself says it."""
    numbers: dict[str, float]
    """Figures of the record."""
    text: Text | None
    """Texts of people, providers and nodes; null for none."""


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
    limiting_stage: Stage
    """Stage that limits the training now: the diagnosis that pages show."""
    limiting_cause: LimitingCause
    """Cause of that diagnosis."""
    needs_person: bool
    """True if the cause needs an action by a person."""


class PoolView(ToolModel):
    """State of one pool."""

    pool: str
    mode: Mode
    """Mode of the rule and of agents in this pool."""
    provider: str
    type: str
    region: str
    is_spot: bool
    nodes: dict[InstanceState, int]
    """Instances by state. Counts."""
    target: int
    """Target of the last applied plan, nodes."""
    rule_target: int | None
    """Target that the rule recommends, nodes; null without a recommendation."""
    rule_reasons: list[Reason]
    """Reasons of the recommendation."""
    limited_by: list[LimitInEffect]
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
    hold_left_s: float
    """Time for which a hold prevents removals, seconds; 0 without one."""
    breaker_left_s: float
    """Time until launches are attempted again, seconds; 0 when they are attempted now."""
    launch_failures_1h: int
    """Launches that failed within the last hour. Count."""
    failure_causes: dict[ErrorCategory, int]
    """Failed launches by cause. Counts."""
    lost_nodes: int
    """Nodes from which dataflow receives no heartbeat now. Count."""
    losses_1h: dict[Cause, int]
    """Ready nodes that ended without a request within the last hour, by cause. Counts."""
    stragglers: int
    """Nodes with a straggler signal. Count."""
    node_episodes_per_s: float | None
    """Median speed of the pool's ready nodes, episodes per second; null without a ready node."""
    node_speed_share: float | None
    """Median speed of the pool's nodes over the best median speed of the same hardware in any pool; null with too few
    nodes. The rule compares only the nodes of one pool: when all of them are slow, only this value shows it."""
    proposal_state: ProposalState | None
    """State of the latest proposal of an agent within the last hour; null without one. waiting: make no plan for this
    pool."""
    proposal_target: int | None
    """Target of that proposal, nodes; null without one."""
    proposal_left_s: float
    """Time for which people can still decide on the proposal, seconds; 0 when they cannot."""
    rejected_age_s: float | None
    """Time since a person last rejected a proposal, seconds; null without a rejection within a day."""
    signals: list[SignalKind]
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
    maintainer_mode: MaintainerMode
    kill_switch: KillScope
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
    problems: list[ProblemView]
    """Current problems of the fleet service."""
    learning_faults: list[ProblemView]
    """Current faults of learning, the most urgent first: no change of the fleet mends them."""


class NodeView(ToolModel):
    """State of one node."""

    node: str
    pool: str
    state: InstanceState
    report_state: NodeState | None
    """State in dataflow's report; null if the report does not contain the node."""
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
    departure_cause: Cause | None
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


class RecordView(ProblemView):
    """One event or decision."""

    age_s: float
    """Time since then, seconds."""
    kind: RecordKind
    pool: str | None
    """Token of the pool; null for a record of no single pool."""


class EventView(RecordView):
    """One entry of the journal, or one event of the run."""

    decision: int | None
    """Number of the journal entry, for fleet_explain; null for an event of the run."""
    by: Role | None
    """Role of the actor; null for an event of the run."""


class EventsOutput(ToolModel):
    """Output of `fleet_events`."""

    events: list[EventView]
    matching: int
    """Events that match, regardless of the limit. Count."""


class ExplainOutput(RecordView):
    """Output of `fleet_explain`. Size fields are null for entries other than an applied plan."""

    decision: int
    by: Role
    """Role of the actor."""
    nodes_before: int | None
    """Size of the pool before the change, nodes."""
    nodes_after: int | None
    """Size that the change requested, nodes."""
    launched: int | None
    """Launches that the change requested. Count."""
    retired: int | None
    """Nodes that the change drained or terminated. Count."""
    hold_s: float | None
    """Duration of the hold that the change set, seconds; 0 for none."""
    was_approved: bool
    """True if a person approved the plan."""
    rules: list[GuardRule]
    """Rules of the guard that applied to the plan; empty for entries other than plans."""
    pool_now: PoolView | None
    """Current state of the pool; null if it does not exist."""


class ViolationView(ToolModel):
    """Rule of the guard that does not allow the plan, or not without approval."""

    code: GuardRule
    verdict: Verdict


class JudgedPlan(ToolModel):
    """Plan with the verdict of the guard."""

    plan_id: str
    """Argument of fleet_apply."""
    verdict: Verdict
    """Verdict of the guard. refused: do not apply the plan."""
    needs_approval: bool
    """True if fleet_apply proposes the plan to a person instead of applying it."""
    findings: list[ViolationView]
    """Reasons of the verdict; empty for an allowed plan."""
    usd_per_hour_change: float
    """Change of the cost, US dollars per hour."""
    expires_in_s: float
    """Time for which the plan can be applied, seconds."""


class PlanOutput(JudgedPlan):
    """Output of `fleet_plan`."""

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
    hold_s: float
    """Duration of the hold that the change sets because the rule's target is lower, seconds; 0 for none."""
    unapproved_low: int
    """Smallest target that needs no approval because of its distance from the rule's target, nodes."""
    unapproved_high: int
    """Largest target that needs no approval because of its distance from the rule's target, nodes."""


class FaultView(ToolModel):
    """Fault of how a policy learns."""

    policy: str
    """Token of the policy."""
    fault: LearningFault
    severity: Severity
    numbers: dict[str, float]
    """Measured values."""
    text: Text | None
    """Texts of policies, data sets and recipes in the evidence; null for none."""
    headline: str
    """The fault in one sentence."""
    threshold: str
    """Value from which it is a fault, and why."""
    remedy: str
    """Remedy, for people and for you. `{...}` stands for a value of `numbers`."""


class FlowView(ToolModel):
    """Flow of prompts, or evaluation."""

    flow: str
    """Token of the flow."""
    is_paused: bool
    selector: str | None
    """Kind of its selector; null for an evaluation."""
    filters: list[str]
    """Kinds of its filters."""
    scores: dict[str, float]
    """Newest scores of an evaluation, by the token of the policy; empty for a flow that is trained on."""


class PolicyView(ToolModel):
    """Policy that learns."""

    policy: str
    """Token of the policy."""
    steps: int
    """Training steps. Count."""
    reward_mean: float
    """Mean reward of the last ten steps."""
    learning_rate: float | None
    """Learning rate of the latest step; null before it."""


class DoctorOutput(ToolModel):
    """Output of `run_doctor`."""

    report_age_s: float | None
    """Age of dataflow's report, seconds; null before the first report."""
    faults: list[FaultView]
    """Current faults, the most urgent first."""
    policies: list[PolicyView]
    flows: list[FlowView]
    """Flows that are trained on."""
    evaluations: list[FlowView]
    plugins: dict[PluginSlot, list[str]]
    """Kinds that run_change can set, by slot."""
    proposal_state: ProposalState | None
    """State of the latest proposal of an agent for the run within the last hour; null without one. waiting: make no
    plan for the run."""


class RunChangeOutput(JudgedPlan):
    """Output of `run_change`."""

    action: RunAction


class ApplyOutput(ToolModel):
    """Output of `fleet_apply`."""

    plan_id: str
    outcome: ActionOutcome
    """applied: the change was made. proposed: a person decides; do not retry. recorded: shadow mode, nothing was
    changed. refused, conflict: nothing was changed; do not retry in this wake."""
    launched: int
    """Launches that were requested. Count."""
    retired: int
    """Nodes that drain or terminate. Count."""
    decision: int | None
    """Number of the journal entry; null if nothing was changed."""
    applied_hold_s: float
    """Duration of the hold that the change set, seconds; 0 for none."""
    verify_after_s: float | None
    """Time until the result is verified, seconds; null if nothing was changed. The first message of the next
    wake lists missed targets."""


class DoneOutput(ToolModel):
    """Output of `fleet_hold` and `fleet_escalate`."""

    outcome: ActionOutcome
    """applied: done. recorded: shadow mode, nothing was changed."""
    decision: int | None
    """Number of the journal entry; null if nothing was changed."""
