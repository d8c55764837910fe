"""Types of the fleet service: pools, plans, instances and the audit log.

    plan (no side effect) ──► apply (once for each key) ──► instances: launched, drained, retired

A plan is made for one version of a pool; when the pool has changed since, applying the plan is a conflict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.causes import LOSSES, Cause
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Name, PolicyId, PoolId
from astraflow.contract.recommendations import Mode
from astraflow.contract.values import Json


class LaunchId(Name):
    """Identifier of an instance, from the intent to start it: a ULID. It is also the tag at the provider and the node
    name."""

    __slots__ = ()


class PlanId(Name):
    """Identifier of a plan."""

    __slots__ = ()


class Role(Enum):
    """Permissions of an actor, in ascending order."""

    AGENT = "agent"
    """A model or a program: plans and applies within the envelope, approves nothing."""
    RULE = "rule"
    """The sizer, acting through the fleet service itself."""
    OPERATOR = "operator"
    """A person: plans, applies, sets manual overrides, approves plans of agents and the rule."""
    ADMIN = "admin"
    """A person: sets bounds, modes and budgets; approves everything; retires without a drain; turns the kill switch
    off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Caller of a change, as the audit log names it."""

    name: str
    """Name of a person or program."""
    role: Role
    """Permissions of the actor."""
    pool: str = ""
    """Only pool that the actor may change; empty for all pools."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= 128 or not self.name.isprintable():
            raise InvalidInput(
                f"cannot use {self.name[:140]!r} as an actor's name: invalid; use 1 to 128 printable characters",
                code="actor.invalid_name",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """Configuration of a pool: hardware, engine and bounds. The fleet service stores it."""

    id: PoolId
    """Name of the pool."""
    provider: str
    """Name of one of the fleet service's providers."""
    mode: Mode = Mode.ADVISE
    """Off: only people change the pool. Advise: plans of the rule and of programs wait for approval. Up-only: the
    rule's targets are applied upwards. On: they are applied."""
    min_nodes: int = 0
    """Smallest target. Nodes."""
    max_nodes: int = 8
    """Largest target. Nodes."""
    usd_per_hour_max: float | None = None
    """None for no bound."""
    usd_per_day_max: float | None = None
    """Per day in UTC; None for no bound."""
    type: str = ""
    """The provider's name of the instance type; empty for its default."""
    region: str = ""
    """The provider's name of the region; empty for its default."""
    is_spot: bool = False
    """True for preemptible instances at a lower price."""
    engine: str = ""
    """Engine of the nodes: a kind or a TOML table of its options; empty for the run's suggestion."""
    capacity: int | None = None
    """Concurrent episodes per node; None for the node's default."""
    policies: tuple[PolicyId, ...] = ()
    """Policies that the nodes serve; empty for all. Only for pools that people size, because the rule's figures are
    those of nodes that serve all policies."""
    drain_s: float = 600.0
    """Time for a draining node to finish or hand back its tasks."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """Provider-specific options."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", tuple(map(PolicyId, self.policies)))
        if self.policies and self.mode in (Mode.UP_ONLY, Mode.ON):
            raise InvalidInput(
                f"cannot define pool {str(self.id)!r}: mode is {self.mode.value!r} and its nodes serve only "
                f"{', '.join(self.policies)}, whose demand the rule does not measure apart; use the mode advise or "
                "off, or serve all policies",
                code="pool.partial_autoscaling",
            )
        if not 0 <= self.min_nodes <= self.max_nodes:
            raise InvalidInput(
                f"cannot define pool {str(self.id)!r}: min_nodes={self.min_nodes} and max_nodes={self.max_nodes}; "
                "use 0 <= min_nodes <= max_nodes",
                code="pool.invalid_bounds",
            )
        for name in ("usd_per_hour_max", "usd_per_day_max", "drain_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InvalidInput(
                    f"cannot define pool {str(self.id)!r}: {name} is {value}; use a finite number of 0 or more",
                    code="pool.invalid_bounds",
                )


class InstanceState(Enum):
    """State of an instance in the ledger; `maintainer.fleet.ledger.lifecycle` draws the transitions."""

    INTENDED = "intended"
    """Recorded before the launch; the provider may or may not have it."""
    PENDING = "pending"
    """Accepted by the provider; being created or booting."""
    RUNNING = "running"
    """Running; its node has not joined yet."""
    READY = "ready"
    """Its node takes tasks."""
    DRAINING = "draining"
    """Its node finishes or hands back its tasks."""
    RETIRING = "retiring"
    """Its termination was, or is about to be, requested from the provider."""
    SUSPECT = "suspect"
    """Observations contradict its record; it is observed further and left unchanged."""
    GONE = "gone"
    """Terminated, or never started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance in the ledger. Times are Unix seconds, None before the transition."""

    id: LaunchId
    """Launch id, which is also the name of its node."""
    pool: PoolId
    """Pool of the instance."""
    state: InstanceState
    """State in the ledger."""
    provider: str
    """Name of its provider."""
    handle: str = ""
    """The provider's identifier; empty while unknown."""
    type: str = ""
    """The provider's name of the instance type; empty for its default."""
    region: str = ""
    """The provider's name of the region; empty for its default."""
    is_spot: bool = False
    """True for a preemptible instance."""
    usd_per_hour: float = 0.0
    """Price. US dollars per hour; 0 while unknown."""
    actor: str
    """Name of the actor that launched it."""
    reason: str
    """Reason of the launch."""
    intended_at: float
    """Time of the intent to launch it. Unix seconds."""
    expires_at: float
    """Time when it reaches the maximum age of instances. Unix seconds."""
    launched_at: float | None = None
    """Time when the provider accepted the launch. Unix seconds; None before."""
    ready_at: float | None = None
    """Time when its node took tasks for the first time. Unix seconds; None before."""
    draining_at: float | None = None
    """Time when its node began to drain. Unix seconds; None before."""
    retiring_at: float | None = None
    """Time when its termination was requested. Unix seconds; None before."""
    gone_at: float | None = None
    """Time when it had ended. Unix seconds; None before."""
    cause: Cause | None = None
    """Cause of its end. None while it stays, and for instances recorded before the ledger had causes."""
    message: str = ""
    """Reason for its end or latest problem, as a sentence."""

    @property
    def left_at(self) -> float | None:
        """Time when it began to drain, retire or end; None while it stays."""
        times = (self.draining_at, self.retiring_at, self.gone_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def was_lost(self) -> bool:
        """Returns whether it had worked and ended, or is ending, without a request."""
        return self.ready_at is not None and self.cause in LOSSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Current state of a pool in the fleet service."""

    spec: PoolSpec
    """Configuration of the pool."""
    version: int
    """Grows with every change of the spec or of the pool's instances."""
    target: int
    """Requested number of nodes, from the last applied plan."""
    nodes: Mapping[InstanceState, int]
    """Instances by state; `GONE` excluded."""
    terminating: Mapping[Cause, int] = field(default_factory=dict)
    """Draining and retiring instances, by cause."""
    losses: Mapping[Cause, int] = field(default_factory=dict)
    """Nodes that worked and were preempted or lost within the last hour, by cause."""
    usd_per_hour: float
    """Cost of the present instances. US dollars per hour."""
    usd_today: float
    """Cost since midnight UTC. US dollars."""
    rule_target: int | None
    """Target that the rule recommends; None without a recommendation."""
    launch_delay_s: float
    """From the intent to a ready node: measured 90th percentile, or the provider's estimate without measurements."""
    override_until_at: float | None = None
    """End of the manual override, during which no node is removed; None without an override."""
    override_reason: str = ""
    """Reason of the manual override; empty without one."""
    breaker_until: float | None = None
    """No launch is tried before this time because too many failed; None otherwise."""
    last_change_at: float | None = None
    """Time of the last applied change. Unix seconds; None before the first."""
    simulated: tuple[str, ...] = ()
    """Simulated parts of its provider."""
    can_inject_fault: bool = False
    """True if the provider supports fault injection."""


class Verdict(Enum):
    """The guard's verdict on a plan."""

    ALLOWED = "allowed"
    NEEDS_APPROVAL = "needs_approval"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule of the guard that applies to a plan."""

    code: str
    """Identifier of the rule: `envelope`, `max_nodes`."""
    verdict: Verdict
    """Consequence of the rule for the plan."""
    message: str
    """Cause and remedy, as a sentence."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Figures of the sentence, for programs: `target`, `limit`, `usd`, `left_s`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Requested change of one pool: a size, or instances to retire."""

    pool: PoolId
    actor: Actor
    reason: str
    target: int | None = None
    retire: tuple[LaunchId, ...] = ()
    """Exactly these instances; excludes `target`."""
    is_kill: bool = False
    """Retires without a drain; for admins."""

    def __post_init__(self) -> None:
        if (self.target is None) == (not self.retire):
            raise InvalidInput(
                "cannot make a plan: it needs either `target` or `retire`; set exactly one of them",
                code="plan.invalid_change",
            )
        if not self.reason.strip():
            raise InvalidInput(
                "cannot make a plan: the reason is empty; give one for the audit log", code="plan.invalid_reason"
            )
        if len(self.reason) > 2000:
            raise InvalidInput(
                f"cannot make a plan: the reason has {len(self.reason)} characters; use at most 2000",
                code="plan.invalid_reason",
            )
        if self.target is not None and not 0 <= self.target <= 1_000_000:
            raise InvalidInput(
                f"cannot make a plan: the target is {self.target}; use 0 to 1000000 nodes", code="plan.invalid_target"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Effect of a requested change. Nothing has been changed yet."""

    id: PlanId
    """Identifier, for applying the plan."""
    request: PlanRequest
    """Requested change."""
    observed_version: int
    """Version of the pool for which the plan was made."""
    nodes: int
    """Current plus requested nodes; nodes that are draining or retiring do not count."""
    target: int
    """Size of the pool after the change. Nodes."""
    launches: int
    """Instances that the change launches. Count."""
    victims: tuple[LaunchId, ...]
    """Launch ids of the instances that the change removes."""
    eta_s: float
    """Estimated time until the pool has the target size, from known launch delays and drains."""
    usd_per_hour_change: float
    """Change of the cost. US dollars per hour."""
    verdict: Verdict
    """Verdict of the guard."""
    findings: tuple[Finding, ...]
    """Rules of the guard that apply; empty for an allowed plan."""
    created_at: float
    """Time when the plan was made. Unix seconds."""
    expires_at: float
    """Time until which it can be applied. Unix seconds."""
    rule_target: int | None = None
    """Target of the rule when the plan was made; None without a recommendation."""
    override_s: float = 0.0
    """Manual override that applying the plan sets, because the rule recommends fewer nodes and would undo it at its
    next tick. Seconds; 0 for none."""
    guard_json: str = ""
    """Inputs of the guard as JSON, which `maintainer.fleet.guard.inputs` can evaluate again."""

    @property
    def needs_approval(self) -> bool:
        """Returns whether another actor must approve it."""
        return self.verdict is Verdict.NEEDS_APPROVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPlan:
    """Result of applying a plan; the same for every call with the same key."""

    plan: PlanId
    """Identifier of the plan."""
    decision: int
    """Ordinal of its audit log entry."""
    launched: tuple[LaunchId, ...]
    """Launch ids of the started instances."""
    retired: tuple[LaunchId, ...]
    """Launch ids of the instances that drain or end."""
    message: str
    """Performed change, as a sentence."""
    guard_json: str = ""
    """Inputs of the guard when the plan was applied, as JSON."""
    override_until_at: float | None = None
    """End of the manual override that the plan set; None when it set none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChange:
    """Change of a pool that an applied plan requested, in numbers."""

    nodes_before: int
    """Present plus requested nodes before the change. Count."""
    nodes_after: int
    """Size that the plan requested, nodes."""
    launched: int
    """Requested launches. Count."""
    retired: int
    """Nodes that were drained or terminated. Count."""
    override_s: float
    """Duration of the manual override that the plan set, seconds; 0 for none."""
    is_approved: bool
    """True if a person approved the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One entry of the audit log."""

    ordinal: int
    at: float
    kind: str
    """`apply`, `refuse`, `spec`, `override`, `escalate`, `kill_switch`, `orphan`, `launch_failed`, `fault`, `propose`,
    `reject`, `note`, `maintainer_mode`, `alarm`, `alarm_over`."""
    pool: str
    """Empty for entries that concern no single pool."""
    actor: Actor
    reason: str
    message: str
    """Performed change, as a sentence."""
    key: str = ""
    """Idempotency key of the caller; empty when it gave none."""
    findings: tuple[Finding, ...] = ()
    """The guard's findings on a plan that was applied or refused."""
    change: AppliedChange | None = None
    """Change of an applied plan; None for other kinds, and for entries of ledgers before revision 0007."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """An injected fault: nodes that end at once, as if their machines had failed."""

    decision: Decision
    lost: tuple[LaunchId, ...]


class KillScope(Enum):
    """Callers that the kill switch stops."""

    NONE = "none"
    """Off."""
    AGENTS = "agents"
    """Stops models and programs; the rule and people continue."""
    ALL = "all"
    """Stops all callers: nothing is launched or retired until an admin turns it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """State of the fleet service."""

    cluster: str
    """Tag of the service's instances at the providers."""
    at: float
    """Time of the status. Unix seconds."""
    pools: tuple[Pool, ...]
    """All pools."""
    kill: KillScope
    """Callers that the kill switch stops."""
    kill_reason: str
    """Reason of the kill switch; empty while it is off."""
    usd_per_hour: float
    """Cost of all instances. US dollars per hour."""
    usd_today: float
    """Cost of all instances since midnight UTC. US dollars."""
    last_sweep_at: float | None
    """Time of the last comparison of the ledger with the providers. Unix seconds; None before the first."""
    orphans: int
    """Instances with this cluster's tag that are not in the ledger; they are observed, then terminated."""
    waiting: int = 0
    """Proposals that wait for approval."""
    problems: tuple[str, ...] = ()
    """Problems that need an action by a person, each a sentence."""
