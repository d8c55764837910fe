"""What a node says about itself, and what it is told: no tokens, so whoever only reads about nodes needs no arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astraflow.contract.ids import FlowId, NodeId, PolicyId, PoolId, TaskId, Version
from astraflow.contract.links import LinkReport
from astraflow.contract.values import Json

MAX_CAPACITY = 4096
"""Episodes that one node runs at once, at most: their leases and the ids in its reports stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says about itself when it joins. `name` is stable over restarts of the same node."""

    name: str
    pool: PoolId
    region: str
    engine: str
    is_simulated: bool
    hardware: str
    capacity: int
    """Episodes it runs at once."""
    price_per_hour: float
    """US dollars; 0 when unknown."""
    software: str
    """Release of astraflow it runs."""
    running: tuple[TaskId, ...] = ()
    """Tasks still in flight when an already running node joins again, after dataflow was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSpec:
    """What a node must know to run a flow's tasks: plug-in kinds with their options, as data."""

    id: FlowId
    workflow: Mapping[str, Json]
    reward: Mapping[str, Json]
    evaluation_share: float | None = None
    """For an evaluation, the largest share of a node's capacity that it takes; None for a flow that is trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """What a node must know to serve a policy: how to build its model (weights come over the weight plane)."""

    id: PolicyId
    model: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Dataflow's answer to a node that joins: all it needs to take part."""

    node: NodeId
    lease_s: float
    beat_s: float
    run: str
    weights_address: str
    flows: tuple[FlowSpec, ...]
    policies: tuple[PolicySpec, ...]
    engine: Mapping[str, Json]
    """The run's suggested engine; a node may choose another."""
    weights_key: bytes = b""
    """Public key (Ed25519, 32 bytes) that signs the run's versions; empty when it does not sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A node's beat: what it is doing now and what it did since it joined (all counters grow)."""

    node: NodeId
    running: tuple[TaskId, ...]
    versions: Mapping[PolicyId, Version]
    """The version each engine serves; a policy is absent until its first version is loaded."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Cumulative: see `NODE_COUNTERS`."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Current: see `NODE_GAUGES`."""
    errors: tuple[str, ...] = ()
    """Latest messages worth an operator's look, newest last; at most 8."""
    ending: str = ""
    """Why it is about to leave by its own decision; empty while it goes on."""
    is_taken: bool = False
    """It leaves because it was given notice that its machine is taken away."""
    links: tuple[LinkReport, ...] = ()
    """Where its weights come from, the preferred source first."""


NODE_COUNTERS = (
    "episodes_done",
    "episodes_failed",
    "tokens_generated",
    "tokens_continued",
    "busy_s",
    "blocked_s",
    "weight_bytes_full",
    "weight_bytes_delta",
    "weight_updates_full",
    "weight_updates_delta",
    "weight_bytes_shared",
    "weight_updates_shared",
    "weight_fetch_s",
    "weight_verify_s",
    "weight_pause_s",
    "weight_failures",
    "logprob_gap_failures",
    "evaluation_episodes",
    "evaluation_loads",
    "evaluation_load_s",
    "evaluation_bytes",
)
"""Keys of `NodeStatus.counters`. Those that begin with `evaluation_` are about pinned tasks and the weights fetched for
them; `weight_` leaves these out."""

NODE_GAUGES = ("logprob_gap", "logprob_gap_max", "tokens_per_s", "evaluation_running")
"""Keys of `NodeStatus.gauges`. Gaps: the largest absolute difference of engine and trainer logprobs, in nats.
`evaluation_running`: pinned tasks that run; absent on a node that never had one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """Dataflow's answer to a beat."""

    action: str
    """`go_on`, `drain` (finish what runs, lease nothing) or `leave` (hand everything back and stop)."""
    reason: str = ""
    deadline_s: float = 0.0
    """Of `drain`: seconds after which the node is to be gone, having handed back what did not end; 0 for no limit."""
