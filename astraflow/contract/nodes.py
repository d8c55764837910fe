"""Facts and status that a node reports, dataflow's answers, and join tokens. No type holds token ids or needs numpy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, NodeId, PolicyId, PoolId, PromptId, TaskId, Version
from astraflow.contract.rollouts.agent_calls import LiveSession
from astraflow.contract.rollouts.recording import ColumnNeeds
from astraflow.contract.values import Json
from astraflow.contract.weight_reports import LinkReport

MAX_CAPACITY = 4096
"""Largest number of concurrent episodes of one node, so that its leases and the ids in its reports stay small."""


class EvaluationMode(Enum):
    """Way in which a node serves the pinned versions of an evaluation."""

    NONE = "none"
    """The node takes no evaluation tasks."""
    SECOND_ENGINE = "second_engine"
    """The node builds a second engine in its process, beside the engine for training."""
    RESERVED = "reserved"
    """The only engine of the node loads the pinned versions. Meanwhile the node is reserved: it takes no training
    tasks, and does not follow newer versions."""
    SERVED_VERSION = "served_version"
    """As `RESERVED`, but only for the versions that its engine serves: another party loads the weights."""

    @property
    def is_exclusive(self) -> bool:
        """True if training and evaluation tasks exclude each other on the node."""
        return self in (EvaluationMode.RESERVED, EvaluationMode.SERVED_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts that a node reports when it joins. `name` is stable over restarts of the same node."""

    name: str
    """Name of the node."""
    pool: PoolId
    """Pool of the node."""
    region: str
    """Region of its machine."""
    engine: str
    """Kind of its engine."""
    is_simulated: bool
    """True if its engine or environment is simulated."""
    hardware: str
    """GPU or processor of its machine."""
    capacity: int
    """Upper limit of concurrent episodes; the gauge `lease_limit` is the limit in effect. Count."""
    price_per_hour: float
    """US dollars per hour; 0 when unknown."""
    software: str
    """Release of AstraFlow that the node runs, and the isolation of its sandboxes: `0.1.0, sandbox namespaces`."""
    running: tuple[TaskId, ...] = ()
    """Tasks still in flight when an already running node joins again, after dataflow was unreachable."""
    policies: tuple[PolicyId, ...] = ()
    """Policies that the node serves; empty for all policies of the run. The node gets tasks of flows whose policies are
    all among them."""
    evaluation_mode: EvaluationMode = EvaluationMode.SECOND_ENGINE
    """`NONE` until the engines were built."""
    episode_timeout_s: float = 0.0
    """Time limit of an episode on the node; 0 when unknown. Seconds."""
    precision: str = ""
    """Precision in which its engines compute: `float32`, `16 bits` or `weights of few bits`; empty when unknown."""

    def serves(self, policies: Iterable[PolicyId]) -> bool:
        """Returns whether the node serves all of these policies."""
        return not self.policies or set(policies) <= set(self.policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherChoice:
    """Choice between the teachers of a policy by a field of the prompts."""

    policy: PolicyId
    field: str
    """Field of prompts with the name of a teacher."""
    teachers: tuple[str, ...]
    """Names of the teachers."""

    def teacher_of(self, prompt: PromptId, fields: Mapping[str, Json]) -> str:
        """Returns the name of the teacher of a prompt with these fields. Raises: InvalidInput when it has none of
        them."""
        name = fields.get(self.field)
        if not isinstance(name, str) or name not in self.teachers:
            raise InvalidInput(
                f"cannot distil the answers to prompt {prompt!r}: its field {self.field!r} is {name!r}, which is no "
                f"teacher of {self.policy!r}; use one of {', '.join(self.teachers)}",
                code="task.unknown_teacher",
            )
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSpec:
    """Workflow and reward that a node needs to run a flow's tasks: plugin kinds with their options."""

    id: FlowId
    workflow: Mapping[str, Json]
    reward: Mapping[str, Json]
    evaluation_share: float | None = None
    """For an evaluation, the largest share of a node's capacity that it uses, and of nodes that are reserved for it;
    None for a flow that is trained on."""
    attaches_texts: bool = False
    """Nodes attach the text of every trajectory, because dataflow compares the members of a group."""
    temperatures: Mapping[PolicyId, float] = field(default_factory=dict)
    """Temperature at which the algorithm of each policy computes logprobs: nodes record other ones, and the kept sets
    of filtered samples, and refuse episodes that would be trained without them. Without policies whose loss does not
    read recorded logprobs; empty for an evaluation."""
    columns: Mapping[PolicyId, ColumnNeeds] = field(default_factory=dict)
    """Columns that engines record of every token that a policy writes; absent: none."""
    teacher_choices: tuple[TeacherChoice, ...] = ()
    """Policies whose teachers are chosen by a field of the prompts; empty for an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """Model that a node needs to serve a policy. Its weights come over the weight plane."""

    id: PolicyId
    model: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """Dataflow's answer to a node that joins: everything it needs to take part."""

    node: NodeId
    lease_s: float
    """Duration of a lease. Seconds."""
    heartbeat_s: float
    """Interval of heartbeats. Seconds."""
    run: str
    weights_address: str
    flows: tuple[FlowSpec, ...]
    policies: tuple[PolicySpec, ...]
    engine: Mapping[str, Json]
    """Engine that the run suggests; a node may choose another one."""
    engines: Mapping[PolicyId, Mapping[str, Json]] = field(default_factory=dict)
    """Engines that the run suggests for single policies, instead of `engine`."""
    weights_key: bytes = b""
    """Public key (Ed25519, 32 bytes) that verifies the signatures of the run's versions; empty when the run does not
    sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Heartbeat of a node: its current work and cumulative counters since it joined."""

    node: NodeId
    running: tuple[TaskId, ...]
    versions: Mapping[PolicyId, Version]
    """The version each engine serves; a policy is absent until its first version is loaded."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Cumulative values; names in `NODE_COUNTERS`."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Current values; names in `NODE_GAUGES`."""
    errors: tuple[str, ...] = ()
    """Latest messages for an operator, newest last; at most 8."""
    leave_reason: str = ""
    """Reason for which the node leaves by its own decision; empty while it stays."""
    is_preempted: bool = False
    """The node leaves because it received a preemption notice for its machine."""
    links: tuple[LinkReport, ...] = ()
    """Links over which the node fetches weights, the preferred source first."""
    sessions: tuple[LiveSession, ...] = ()
    """Sessions of agent programs; at most `MAX_LIVE_SESSIONS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """Dataflow's answer to a heartbeat."""

    action: str
    """`continue_running`, `drain` (finish what runs, lease nothing) or `leave` (hand everything back and stop)."""
    reason: str = ""
    deadline_s: float = 0.0
    """For `drain`, seconds until the node must leave and hand back unfinished tasks; 0 for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """Secret that a process exchanges for one credential, or for one credential per exchange if the token is
    reusable."""

    token: str = field(repr=False)
    id: str
    """Identifier of the token in events and revocations."""
    expires_at: float
    """Unix seconds."""
    port: int
    """Port to join on, on the host of the service that issued the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJoinToken:
    """A join token in a listing, without the secret."""

    id: str
    role: str
    """Role that the token's holder gets."""
    name: str
    pool: str
    expires_at: float
    """Unix seconds."""
    is_reusable: bool
    uses: int
    """Number of exchanges so far."""
    max_uses: int
    """For a reusable token, number of exchanges after which it is refused; 0 for no limit."""
    state: str
    """`minted`, `used` or `revoked`."""
