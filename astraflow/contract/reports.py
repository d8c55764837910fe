"""What is measured, as data: tables, pages, Prometheus, the sizer and the maintainer all read this one report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.causes import Cause
from astraflow.contract.evaluations import EvaluationReport
from astraflow.contract.failures import Failure
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, PoolId, TaskId, Version
from astraflow.contract.links import LinkReport, WeightsReport
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.plugins import PlannedPlugins, PluginSpec
from astraflow.contract.spans import Span


class NodeState(Enum):
    """A node as dataflow sees it."""

    JOINING = "joining"
    """Joined, no version loaded yet."""
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    """Beats stopped; its leases expired."""
    GONE = "gone"
    """Said goodbye."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One node now. Rates are over the last ten seconds."""

    id: NodeId
    facts: NodeFacts
    state: NodeState
    joined_at: float
    beat_age_s: float
    leased: int
    episodes_per_s: float
    tokens_per_s: float
    versions: Mapping[PolicyId, Version]
    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    lease_expiries: int
    errors: tuple[str, ...] = ()
    links: tuple[LinkReport, ...] = ()
    """Where its weights come from, the preferred source first."""
    cause: Cause | None = None
    """Why it drains, or left: somebody asked, or it was given notice that its machine is taken away. None while it goes
    on, and where it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """Nodes that are sized together."""

    id: PoolId
    ready: int
    joining: int
    draining: int
    lost: int
    episodes_per_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReport:
    """Where the groups of one flow are. Cumulative since the run began, over restarts.

    The balance `issued == open + admitted + dropped` holds at all times.
    """

    id: FlowId
    issued: int
    open: int
    """Issued, not all members back yet."""
    admitted: int
    dropped: Mapping[str, int]
    """Groups refused at admission, by reason (filter name, `failed`)."""
    tasks_queued: int
    tasks_leased: int
    episodes: Mapping[str, int]
    """Pushed episodes, each under one fate. Those that count: `accepted` and `failed_<boundary>`. Those that do not:
    `retried` (the infrastructure failed), `superseded` (it failed in a try that another took the place of), `duplicate`
    (the member has a result), `late` (so had all members: the group is closed), `unknown` (never issued)."""
    leases_expired: int
    tasks_returned: int
    """Handed back, by a node that left or was replaced too."""
    is_paused: bool = False
    plugins: Mapping[str, float] = field(default_factory=dict)
    """What its selector and filters say of themselves, as `kind.metric`."""
    selector: PluginSpec = field(default_factory=dict)
    """The one in force."""
    filters: tuple[PluginSpec, ...] = ()
    """Those in force, in order."""
    planned: tuple[PlannedPlugins, ...] = ()
    """What takes over when all its policies have reached the next version."""
    prefixes: Mapping[str, int] = field(default_factory=dict)
    """What nodes wrote of tasks that they handed back. `handed_back == kept + continued + discarded + stale` always;
    besides: `late` (handed back by a node that did not hold the task any more), `tokens_saved` (continued instead of
    written again) and `kept_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """What one policy's trainer consumes. Cumulative since the run began, over restarts.

    The balance `admitted == buffered + in_batch + trained + sum(dropped)` holds at all times: it is about fresh groups,
    each trained once. What is trained again is counted as `replayed`: batches hold `trained + replayed` groups in all.
    """

    policy: PolicyId
    version: Version
    batch_groups: int
    max_staleness: int
    admitted: int
    buffered: int
    in_batch: int
    """Fresh groups in a batch that is not acknowledged yet."""
    trained: int
    dropped: Mapping[str, int]
    """By reason: `stale`, or `full` for what was made for another policy while this one's trainer was stalled."""
    issue_room: int
    """How many more groups the staleness gate lets out now."""
    produced_per_s: float
    """Admitted groups, over the last ten seconds."""
    consumed_per_s: float
    """Trained groups, over the last ten seconds."""
    staleness: Mapping[int, int]
    """Rows of the last ten batches by how many versions old they were when served."""
    steps: int
    redelivered: int
    wait_s: float
    compute_s: float
    publish_s: float
    """Cumulative seconds over all steps."""
    wait_fraction: float
    """Blocked in `PullBatch` over step wall time, last ten steps."""
    is_waiting: bool
    """The trainer is blocked in `PullBatch` now."""
    reward_mean: float
    """Mean reward of the last trained batch; of the admitted groups before the first step."""
    reward_produced: float
    """Mean reward of the rollouts of the last ten seconds, before any filter."""
    tokens_mean: float
    """Model-written tokens per row in the last trained batch."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The trainer's own metrics of its last step."""
    rewards: tuple[float, ...] = ()
    """For each of the latest 32 steps, the mean reward of the rollouts that came in between it and the step before it,
    before any filter; newest last: `rewards[-1]` belongs to step number `steps`."""
    replayed: int = 0
    """Times that a trained group was trained again; 0 unless the sampler replays."""
    replayable: int = 0
    """Trained groups that are kept to be trained again while they are fresh enough."""
    plugins: Mapping[str, float] = field(default_factory=dict)
    """What its sampler says of itself, as `kind.metric`."""
    sampler: PluginSpec = field(default_factory=dict)
    """The one in force."""
    planned: tuple[PlannedPlugins, ...] = ()
    """What takes over with the next version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, for people: `kind` a word, `subject` what it is about, `message` a sentence."""

    ordinal: int
    """Grows with each event, over restarts too: the key for paging."""
    at: float
    kind: str
    subject: str
    message: str
    folded: int = 0
    """Happenings of the same kind that this one event stands for besides itself; 0 when it stands for itself alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The stop condition of a run that was met, and what followed."""

    reason: str
    """Which part of the condition was met. A sentence."""
    has_learned: bool
    """False when the steps ran out before every policy reached the reward."""
    at: float
    """When it was met. Unix seconds."""
    ends_run: bool
    """The run is complete: no tasks and batches are served. False for a run that continues after its stop condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of a run at one second. `sequence` grows by one a second and over restarts."""

    run: str
    sequence: int
    at: float
    """Unix seconds."""
    uptime_s: float
    simulated: tuple[str, ...]
    """Stand-ins that take part (`engine scripted`, `trainer scripted`), so that every page can say so."""
    flows: tuple[FlowReport, ...]
    streams: tuple[StreamReport, ...]
    pools: tuple[PoolReport, ...]
    nodes: tuple[NodeReport, ...]
    events: tuple[Event, ...]
    """The latest ones, newest last."""
    troubles: tuple[str, ...] = ()
    """What keeps the run from going on or has something lost now, each a sentence that says which and what to do; empty
    when all is well."""
    is_durable: bool = True
    """False for a run that keeps nothing on disk: a restart of dataflow begins it anew."""
    held_bytes: int = 0
    """Results that are held in memory until they are trained, filtered out or too stale, and what was handed back."""
    memory_bytes: int = 0
    """Bound of `held_bytes`: no new groups are issued while it is reached."""
    advice: tuple[PoolAdvice, ...] = ()
    """How large each pool should be, and why; empty before the first tick of the sizer."""
    evaluations: tuple[EvaluationReport, ...] = ()
    """Of each evaluation the round that ended last, the one that runs and the one that waits, where there are any."""
    weights: tuple[WeightsReport, ...] = ()
    """The latest versions of each policy; in a minute's point of the history, those published in that minute."""
    completion: Completion | None = None
    """Absent until the stop condition is met."""

    def lag(self, node: NodeReport) -> Mapping[PolicyId, int]:
        """Versions that a node is behind each trainer; without what it does not serve yet."""
        trained = {stream.policy: stream.version for stream in self.streams}
        served = node.versions.items()
        return {policy: max(0, trained[policy] - version) for policy, version in served if policy in trained}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTrajectory:
    """One trajectory to look at, or a member of its group that failed: then there are no tokens, but a failure."""

    ordinal: int
    """Grows with each sample: the key for paging."""
    group: GroupId
    task: TaskId
    flow: FlowId
    policy: PolicyId
    node: NodeId
    at: float
    step: int | None
    """The trainer step it was used in; None when not trained (yet)."""
    fate: str
    """`buffered`, `trained`, `evaluated` (it was never meant for training), why its group was dropped (a filter's name,
    `failed`, `stale`), or `unrecorded` when the service was killed before that was kept."""
    reward: float
    """0 for a member that failed."""
    prompt_text: str
    completion_text: str
    reference_text: str
    tokens: int
    model_tokens: int
    spans: tuple[Span, ...]
    is_truncated: bool
    member: int = 0
    """Its place in the group."""
    attempt: int = 0
    """Tries of this member that failed before the one that is shown."""
    duration_s: float = 0.0
    """Of its episode, on the node."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the workflow measured."""
    failure: Failure | None = None
    """Why this member has no trajectory: it is masked out of its group."""
    text_ends: tuple[int, ...] = ()
    """Where in `prompt_text + completion_text` each span ends, in letters; empty when it was not recorded."""
    span_s: tuple[float, ...] = ()
    """Seconds of each span, 0 where they are not known, a stretch of one author with all its time at its first; empty
    when they were not recorded."""
