"""Plans: requested changes of one pool, and the guard's verdict on them.

    plan (no side effect) ──► apply (once for each key) ──► instances: launched, drained, retired

A plan is made for one version of a pool; when the pool has changed since, applying the plan is a conflict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.run_changes import RUN, RunChange
from astraflow.contract.ids import Name, PoolId


class PlanId(Name):
    """Identifier of a plan."""

    __slots__ = ()


class Role(Enum):
    """Permissions of an actor, in ascending order."""

    AGENT = "agent"
    """A model or a program: plans and applies within the limits, approves nothing."""
    RULE = "rule"
    """The sizer, acting through the fleet service itself."""
    OPERATOR = "operator"
    """A person: plans, applies, sets holds, approves plans of agents and the rule."""
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


class Verdict(Enum):
    """The guard's verdict on a plan."""

    ALLOWED = "allowed"
    NEEDS_APPROVAL = "needs_approval"
    REFUSED = "refused"


class GuardRule(Enum):
    """Rules of the guard."""

    KILL_SWITCH = "kill_switch"
    MODE = "mode"
    """Mode of the pool."""
    SCOPE = "scope"
    """Pool of the actor, or of the instances."""
    KILL = "kill"
    """Termination without a drain."""
    MAX_NODES = "max_nodes"
    MIN_NODES = "min_nodes"
    BREAKER = "breaker"
    """Recent launches failed."""
    USD_PER_HOUR = "usd_per_hour"
    FLEET_USD_PER_HOUR = "fleet_usd_per_hour"
    USD_PER_DAY = "usd_per_day"
    FLEET_USD_PER_DAY = "fleet_usd_per_day"
    RATE = "rate"
    """Changes per hour."""
    COOL_DOWN = "cool_down"
    """The last change has not taken effect yet."""
    REJECTED = "rejected"
    """A person rejected the change."""
    HOLD = "hold"
    """A hold keeps all nodes."""
    LAST_READY = "last_ready"
    """The change would retire the last ready node."""
    STALE = "stale"
    """Dataflow's report is too old to retire nodes."""
    UNDONE = "undone"
    """The rule would undo the change."""
    DISTANCE = "distance"
    """Distance from the rule's target above which a person must approve."""
    PLANNER = "planner"
    """Another actor made the plan."""
    MAINTAINER_MODE = "maintainer_mode"
    """Mode of agents."""
    RUN = "run"
    """A program changes the run instead of its pools."""
    PROPOSED = "proposed"
    """The plan waits for approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule of the guard that applies to a plan."""

    code: GuardRule
    """The rule."""
    verdict: Verdict
    """Consequence of the rule for the plan."""
    message: str
    """Cause and remedy, as a sentence."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Figures of the sentence, for programs: `target`, `limit`, `usd`, `left_s`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Requested change of one pool: a size, or instances to retire; or a change of the run."""

    pool: PoolId
    actor: Actor
    reason: str
    target: int | None = None
    retire: tuple[LaunchId, ...] = ()
    """Exactly these instances; excludes `target`."""
    is_kill: bool = False
    """Retires without a drain; for admins."""
    run: RunChange | None = None
    """Change of the run itself, with the pool `RUN`; excludes `target` and `retire`."""

    def __post_init__(self) -> None:
        if [self.target is not None, bool(self.retire), self.run is not None].count(True) != 1:
            raise InvalidInput(
                "cannot make a plan: it needs either `target`, `retire` or `run`; set exactly one of them",
                code="plan.invalid_change",
            )
        if (self.run is not None) != (self.pool == RUN):
            raise InvalidInput(
                f"cannot make a plan: changes of the run, and only these, have the pool {RUN!r}; correct it",
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
    findings: tuple[Violation, ...]
    """Rules of the guard that apply; empty for an allowed plan."""
    created_at: float
    """Time when the plan was made. Unix seconds."""
    expires_at: float
    """Time until which it can be applied. Unix seconds."""
    rule_target: int | None = None
    """Target of the rule when the plan was made; None without a recommendation."""
    hold_s: float = 0.0
    """Hold that applying the plan sets, because the rule recommends fewer nodes and would undo it at its
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
    hold_until_at: float | None = None
    """End of the hold that the plan set; None when it set none."""
