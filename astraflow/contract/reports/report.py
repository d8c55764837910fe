"""Report on the state of a run: the only source for tables, pages, Prometheus, the sizer and the maintainer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.batching import BatchingFacts
from astraflow.contract.fleet.instances import Cause
from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, PoolId, TaskId, Version
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.plugins import PlannedPlugins, PluginKind, PluginSpec
from astraflow.contract.records import Record
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.rollouts.agent_calls import AgentCall, LiveSession
from astraflow.contract.rollouts.failures import Failure
from astraflow.contract.rollouts.spans import Ending, Span
from astraflow.contract.rollouts.timelines import ADMIT, BATCH, STEP, Hop
from astraflow.contract.weight_reports import LinkReport, WeightsReport


class NodeState(Enum):
    """State of a node, as dataflow records it."""

    JOINING = "joining"
    """Joined, but no version loaded yet."""
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    """Heartbeats stopped; its leases expired."""
    GONE = "gone"
    """Left the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """State of one node. Rates are over the last ten seconds."""

    id: NodeId
    """Id of the node in this incarnation."""
    facts: NodeFacts
    """Facts that the node reported when it joined."""
    state: NodeState
    """State as dataflow records it."""
    joined_at: float
    """Time when it joined. Unix seconds."""
    heartbeat_age_s: float
    """Time since its last heartbeat. Seconds."""
    leased: int
    """Tasks that it holds. Count."""
    episodes_per_s: float
    """Finished episodes. Per second."""
    tokens_per_s: float
    """Tokens that policies wrote. Per second."""
    versions: Mapping[PolicyId, Version]
    """Version that it serves, by policy; a policy is absent until its first version is loaded."""
    counters: Mapping[str, float]
    """Cumulative values since it joined, by the names in `NODE_COUNTERS`."""
    gauges: Mapping[str, float]
    """Current values, by the names in `NODE_GAUGES`."""
    lease_expiries: int
    """Leases that expired, or whose task it kept for too long. Count."""
    errors: tuple[str, ...] = ()
    """Latest messages for an operator, newest last."""
    links: tuple[LinkReport, ...] = ()
    """Links over which the node fetches weights, the preferred source first."""
    cause: Cause | None = None
    """Reason why the node drains or left: a request or a preemption notice. None while it stays, and when unknown."""
    sessions: tuple[LiveSession, ...] = ()
    """Sessions of agent programs that run on the node, the oldest first: those among the `MAX_REPORTED_SESSIONS` oldest
    of all nodes. The gauge `agent_sessions` counts all of the node."""
    oldest_lease_s: float = 0.0
    """Time for which it has held its oldest task; 0 without a task. Seconds."""
    results: int = 0
    """Results that counted, of all nodes that joined under its name with its credential. Count."""
    is_on_probation: bool = False
    """True while it gets a few tasks at a time, because it kept or returned others without a result."""

    @property
    def lease_limit(self) -> int:
        """Concurrent episodes that the node accepts now; its capacity when it reports no valid limit."""
        limit = self.gauges.get("lease_limit", -1.0)
        return int(limit) if 0 <= limit <= self.facts.capacity else self.facts.capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """Nodes of one pool, by state. Counts."""

    id: PoolId
    """Name of the pool."""
    ready: int
    """Nodes that take tasks. Count."""
    joining: int
    """Nodes that load their first version. Count."""
    draining: int
    """Nodes that finish their tasks. Count."""
    lost: int
    """Nodes without a heartbeat. Count."""
    episodes_per_s: float
    """Finished episodes of all nodes. Per second, over the last ten seconds."""
    tokens_per_s: float
    """Tokens of all nodes. Per second, over the last ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReport:
    """Counts of the groups of one flow by state. Cumulative since the run began, over restarts.

    The balance `issued == open + admitted + dropped` holds at all times.
    """

    id: FlowId
    """Name of the flow."""
    issued: int
    """Groups whose tasks were issued. Count."""
    open: int
    """Issued groups with members that have no result yet."""
    admitted: int
    """Groups that passed admission. Count."""
    dropped: Mapping[str, int]
    """Groups rejected at admission, by reason (filter name, `failed`)."""
    tasks_queued: int
    """Issued tasks that wait for a node. Count."""
    tasks_leased: int
    """Tasks that nodes hold. Count."""
    episodes: Mapping[str, int]
    """Pushed episodes, by outcome. Counted outcomes: `accepted` and `failed_<boundary>`. Discarded: `retried` (the
    infrastructure failed), `superseded` (a failed attempt that another attempt had replaced), `duplicate` (the member
    has a result), `late` (all members have a result: the group is closed), `unknown` (never issued)."""
    leases_expired: int
    """Leases that expired. Count."""
    tasks_returned: int
    """Tasks handed back by nodes, including nodes that left or were replaced."""
    is_paused: bool = False
    """True while no new groups are issued."""
    plugins: Mapping[str, float] = field(default_factory=dict)
    """Metrics of its selector and filters, as `kind.metric`."""
    selector: PluginSpec = field(default_factory=dict)
    """Active selector."""
    filters: tuple[PluginSpec, ...] = ()
    """Active filters, in order."""
    planned: tuple[PlannedPlugins, ...] = ()
    """Plugins that take effect when all its policies have reached the next version."""
    endings: Mapping[str, int] = field(default_factory=dict)
    """Accepted trajectories with an ending, by ending."""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    """Mean of each reward term over the accepted trajectories of the last ten seconds that have it. At most 16
    terms."""
    partial_rollouts: Mapping[str, int] = field(default_factory=dict)
    """Generations of handed-back tasks. `handed_back == stored + continued + discarded + stale` always holds. Other
    keys: `late` (handed back by a node that no longer held the task), `tokens_saved` (continued instead of generated
    again) and `stored_bytes`."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Results and handed-back tokens that broke a limit, by limit, such as `token_id` or `reward`. Each refused result
    is also counted in `episodes`, as the failure that it became. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many groups of a stream may be outstanding, issued and not yet in a batch, so that its trainer is supplied
    and its batches stay fresh. Groups count by their chance to pass the filters."""

    limit: float
    """Groups that may be outstanding."""
    outstanding: float
    """Groups that are outstanding now."""
    group_s: float
    """Mean time from the issue of a group to its last result. Seconds."""
    step_s: float
    """Smoothed time of a step without the wait for its batch. Seconds."""

    @property
    def is_reached(self) -> bool:
        """True if no further group is issued for now."""
        return self.outstanding >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGroups:
    """Counts of the groups of a stream. Cumulative since the run began, over restarts.

    The balance `admitted == buffered + in_batch + trained + sum(dropped)` holds at all times. It covers fresh groups,
    each trained once. Groups trained again count as `replayed`: batches hold `trained + replayed` groups in total.
    """

    admitted: int
    """Groups that entered the stream. Count."""
    buffered: int
    """Groups that are ready for the trainer. Count."""
    in_batch: int
    """Fresh groups in unacknowledged batches."""
    trained: int
    """Fresh groups in acknowledged batches. Count."""
    dropped: Mapping[str, int]
    """Dropped groups by reason: `stale`, `full` for groups made for another policy while this trainer was stalled,
    `set_aside` for those of a batch that ended the trainer, `damaged` for those that could not be read."""
    replayed: int = 0
    """Times a trained group was trained again; 0 unless the sampler replays."""
    replayable: int = 0
    """Trained groups retained for replay while they are fresh enough."""

    @property
    def accounted(self) -> int:
        """Fresh groups that have a place; all admitted ones. Count."""
        return self.buffered + self.in_batch + self.trained + sum(self.dropped.values())


WAIT_STEPS = 10
"""Steps of `TrainingReport.wait_fraction`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """Steps of one policy's trainer. Cumulative since the run began, over restarts."""

    steps: int
    """Acknowledged training steps. Count."""
    redelivered: int
    """Batches that were delivered again after a restart of the trainer. Count."""
    wait_s: float
    """Time blocked in `PullBatch`. Cumulative seconds over all steps."""
    compute_s: float
    """Time of computation. Cumulative seconds over all steps."""
    publish_s: float
    """Time of publishing. Cumulative seconds over all steps."""
    wait_fraction: float
    """Share of step wall time blocked in `PullBatch`, over the last ten steps."""
    is_waiting: bool
    """True if the trainer is blocked in `PullBatch` now."""
    reward_mean: float
    """Mean reward of the last trained batch; of the admitted groups before the first step."""
    tokens_mean: float
    """Model-written tokens per row in the last trained batch."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the trainer reported with its last step; and of the rollouts of `rewards[-1]`, the share of each
    ending among those with one and the mean of each of at most 16 reward terms."""
    rewards: tuple[float, ...] = ()
    """For each of the latest 32 steps, the mean reward of the rollouts that arrived between the previous step and this
    step, before any filter; newest last: `rewards[-1]` belongs to step number `steps`."""
    losses: tuple[float, ...] = ()
    """Loss of each of the latest 32 steps, newest last, of a policy that trains only on answers of data sets: its
    rewards are all 1. Empty for a policy that is rewarded."""
    waiting_s: float = 0.0
    """Time since the trainer pulled the batch that it waits for; 0 while it waits for none. Seconds."""

    @property
    def total_s(self) -> float:
        """Time of all steps: waiting, computing and publishing. Seconds."""
        return self.wait_s + self.compute_s + self.publish_s

    @property
    def current_wait(self) -> float:
        """Share of step wall time blocked in `PullBatch`, over the last ten steps and a wait that goes on."""
        if not self.steps:
            return 0.0
        step_s = self.total_s / self.steps
        recent_s = WAIT_STEPS * step_s
        open_s = max(0.0, self.waiting_s - step_s)  # a pull in advance waits for up to a step without blocking it
        total_s = recent_s + open_s
        return (self.wait_fraction * recent_s + open_s) / total_s if total_s > 0 else self.wait_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """State of the stream that one policy's trainer consumes."""

    policy: PolicyId
    """Policy that is trained."""
    version: Version
    """Newest version of the policy."""
    batch_groups: int
    """Groups of the next batch; expected ones where a number of tokens sizes batches. Count."""
    max_staleness: int
    """Staleness bound. Versions."""
    groups: StreamGroups
    """Groups of the stream, by what became of them."""
    training: TrainingReport
    """Steps of the trainer."""
    issue_headroom: int
    """Groups that the staleness gate still allows to issue."""
    produced_per_s: float
    """Admitted groups, over the last ten seconds."""
    consumed_per_s: float
    """Trained groups, over the last ten seconds."""
    staleness: Mapping[int, int]
    """Rows of the last ten batches by staleness, in versions, at delivery."""
    reward_produced: float
    """Mean reward of the rollouts of the last ten seconds, before any filter."""
    plugins: Mapping[str, float] = field(default_factory=dict)
    """Metrics of its sampler, as `kind.metric`."""
    sampler: PluginSpec = field(default_factory=dict)
    """Active sampler."""
    planned: tuple[PlannedPlugins, ...] = ()
    """Plugins that take effect with the next version."""
    pace: Pace | None = None
    """None while only the staleness gate limits how far rollouts run ahead."""
    batching: BatchingFacts | None = None
    """How the trainer computes its passes; None before it has attached, or where it computes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Record):
    """Record of something that happened in a run."""

    ordinal: int
    """Grows with each event, over restarts too: the paging key."""
    at: float
    """Time of the event. Unix seconds."""
    repeats: int = 0
    """Number of further occurrences of the same kind that this event stands for; 0 for a single occurrence. Subject and
    values are those of the latest occurrence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Stop condition that a run has met, and the consequence."""

    reason: str
    """Part of the condition that was met, as a sentence."""
    has_learned: bool
    """False when the steps ran out before every policy reached the reward."""
    at: float
    """Time when the condition was met. Unix seconds."""
    ends_run: bool
    """The run is complete: no tasks and batches are served. False for a run that continues after its stop condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """State of a run at one second. `sequence` grows by one per second and over restarts."""

    run: str
    """Name of the run."""
    sequence: int
    """Grows by one per second, over restarts too."""
    at: float
    """Unix seconds."""
    uptime_s: float
    """Time since dataflow started. Seconds."""
    simulated: tuple[str, ...]
    """Simulated components in use (`engine scripted`, `trainer scripted`), for every page to show."""
    flows: tuple[FlowReport, ...]
    """All flows."""
    streams: tuple[StreamReport, ...]
    """Streams, one for each policy that is trained."""
    pools: tuple[PoolReport, ...]
    """Pools of the nodes."""
    nodes: tuple[NodeReport, ...]
    """Nodes of the run, including lost ones."""
    events: tuple[Event, ...]
    """Latest events, newest last."""
    problems: tuple[Record, ...] = ()
    """Problems that block the run or lose work now, each with its cause; empty when there is none."""
    learning_faults: tuple[Record, ...] = ()
    """Faults of learning (`LearningFault`), by policy, the most urgent first; each with the step of its begin."""
    is_durable: bool = True
    """False for a run without storage on disk: a restart of dataflow begins the run again."""
    held_bytes: int = 0
    """Bytes of results in memory until they are trained, filtered out or too stale, handed-back generations
    included."""
    memory_bytes: int = 0
    """Limit of `held_bytes`: no new groups are issued while it is reached."""
    recommendations: tuple[PoolRecommendation, ...] = ()
    """Recommended size of each pool; empty before the first tick of the sizer."""
    evaluations: tuple[EvaluationReport, ...] = ()
    """For each evaluation, the last finished, the running and the waiting round, where they exist."""
    weights: tuple[WeightsReport, ...] = ()
    """Latest versions of each policy; in a one-minute point of the history, the versions published in that minute."""
    completion: Completion | None = None
    """Absent until the stop condition is met."""
    plugin_kinds: tuple[PluginKind, ...] = ()
    """Plugins that can be used; empty in the history, since they do not change."""

    def lag(self, node: NodeReport) -> Mapping[PolicyId, int]:
        """Returns the versions by which a node is behind each trainer; policies it does not serve yet are absent."""
        trained = {stream.policy: stream.version for stream in self.streams}
        served = node.versions.items()
        return {policy: max(0, trained[policy] - version) for policy, version in served if policy in trained}


EVALUATED = "evaluated"
"""Outcome of a sampled group of an evaluation, which was never meant for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTrajectory:
    """A sampled trajectory, or a member of its group that failed: then it has a failure instead of tokens."""

    ordinal: int
    """Grows with each sample: the paging key."""
    group: GroupId
    """Group of its task."""
    task: TaskId
    """Its task, which is also the id of its episode."""
    flow: FlowId
    """Flow of its task."""
    policy: PolicyId
    """Policy that wrote it."""
    node: NodeId
    """Node that ran its episode."""
    at: float
    """Time when it was sampled. Unix seconds."""
    step: int | None
    """Number of the training step that used the trajectory, from 1; None when it was not trained (yet)."""
    outcome: str
    """`buffered`, `trained`, `evaluated` (never meant for training), the reason its group was dropped (a filter's name,
    `failed`, `stale`), or `unrecorded` when the service was killed before it stored the outcome."""
    reward: float
    """Reward; 0 for a member that failed."""
    prompt_text: str
    """Text of the prompt."""
    completion_text: str
    """Text after the prompt: answers of the model and context."""
    reference_text: str
    """Expected answer; empty without one."""
    tokens: int
    """All tokens. Count."""
    model_tokens: int
    """Tokens that the model wrote. Count."""
    spans: tuple[Span, ...]
    """Stretches of one author, in order."""
    is_truncated: bool
    """True if the limit of tokens cut it."""
    member: int = 0
    """Index of the member in its group."""
    attempt: int = 0
    """Failed attempts of this member before this attempt."""
    duration_s: float = 0.0
    """Duration of its episode on the node."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the workflow."""
    failure: Failure | None = None
    """Failure of this member, which is masked out of its group; None for a trajectory."""
    text_ends: tuple[int, ...] = ()
    """End of each span in `prompt_text + completion_text`, in characters; empty when not recorded."""
    span_s: tuple[float, ...] = ()
    """Seconds of each span, 0 where unknown. Consecutive spans of one author have their total at the first. Empty when
    not recorded."""
    index: int = 0
    """Index of the trajectory in its episode."""
    role: str = ""
    """Part that the policy played in the workflow; empty: the index counts as the role."""
    parent: int | None = None
    """Index in the episode of the trajectory that started this one."""
    parent_turn: int | None = None
    """Turn of the parent, from 0, in which it started this one."""
    turn_rewards: tuple[float, ...] = ()
    """Reward of each turn; empty when only the whole is scored."""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    """Terms of a reward with several, before weighting."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Texts for display, such as the state of the environment (`state`)."""
    ending: Ending | None = None
    """Reason for the end of an interaction; None for a single answer."""
    token_ends: tuple[int, ...] = ()
    """End of each model-written token in `prompt_text + completion_text`, in characters. Empty when not recorded, and
    in answers to queries without `with_tokens`."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each model-written token, float32; empty like `token_ends`."""
    token_ids: tuple[int, ...] = ()
    """All tokens. Empty in releases that did not record them, and in answers to queries without `with_tokens`."""
    call_outcomes: Mapping[str, int] = field(default_factory=dict)
    """Recorded calls of the agent program by outcome (`CallOutcome`); empty without an agent."""
    calls: tuple[AgentCall, ...] = ()
    """Recorded calls. Empty without an agent, and in answers to queries without `with_calls`."""
    hops: tuple[Hop, ...] = ()
    """Spans of its episode until the push; empty when not recorded."""
    prompt_fields: str = ""
    """Fields of the prompt, which workflow and reward read, as JSON; empty beyond 64 kB and when not recorded."""
    batched_at: float | None = None
    """When a batch took the group, in Unix seconds; None before, and when not recorded."""
    trained_at: float | None = None
    """When the trainer had acknowledged the step, in Unix seconds; None like `batched_at`."""

    @property
    def timeline(self) -> tuple[Hop, ...]:
        """Spans from lease to step as far as the episode has come, by their begin; empty without recorded spans.

        Each span of dataflow lasts from the end of the one before: a group waits for its members, in the buffer, and
        for its step.
        """
        if not self.hops:
            return ()
        hops = list(self.hops)
        ended_at = hops[-1].ended_at
        step = "" if self.step is None else f"step {self.step}"
        for name, at, detail in (
            (ADMIT, self.at, self.outcome),
            (BATCH, self.batched_at, ""),
            (STEP, self.trained_at, step),
        ):
            if at is not None:
                hops.append(Hop(name=name, began_at=ended_at, duration_s=max(0.0, at - ended_at), detail=detail))
                ended_at = hops[-1].ended_at
        return tuple(sorted(hops, key=lambda hop: hop.began_at))
