"""What is said to the fleet service: pools, plans, instances and the journal of who changed what and why.

    plan (no side effect) ──► apply (once for each key) ──► instances: launched, drained, retired

A plan is made for a pool as it was seen; when the pool has changed since, applying it is a conflict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.advice import Mode
from astraflow.contract.causes import LOSSES, Cause
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Name, PoolId
from astraflow.contract.values import Json


class LaunchId(Name):
    """One instance, from the intent to start it on: a ULID, its provider's tag and the name of its node."""

    __slots__ = ()


class PlanId(Name):
    """One plan."""

    __slots__ = ()


class Role(Enum):
    """What an actor may do; later ones may more."""

    AGENT = "agent"
    """A model or a program: plans and applies inside the envelope, approves nothing."""
    RULE = "rule"
    """The sizer, through the fleet service itself."""
    OPERATOR = "operator"
    """A person: plans, applies, holds, approves what agents and the rule plan."""
    ADMIN = "admin"
    """A person: bounds, modes, budgets; approves everything; retires without a drain; turns the kill switch off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who acts, as the journal names it."""

    name: str
    role: Role
    pool: str = ""
    """The only pool on which they have the role, and may touch anything at all; empty for all of them."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= 128 or not self.name.isprintable():
            raise InvalidInput(f"an actor has a name of 1 to 128 printable characters, not {self.name[:140]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """What a pool is made of and how far it may go. Kept by the fleet service."""

    id: PoolId
    provider: str
    """Name of one of the fleet service's providers."""
    mode: Mode = Mode.ADVISE
    """Off: only people change it. Advise: the rule's and programs' plans wait for a person. Up-only: the rule's targets
    are followed upwards. On: they are followed."""
    min_nodes: int = 0
    max_nodes: int = 8
    usd_per_hour_max: float | None = None
    """None for no bound."""
    usd_per_day_max: float | None = None
    """Of a day in UTC; None for no bound."""
    type: str = ""
    """The provider's name of the hardware; empty for its default."""
    region: str = ""
    is_spot: bool = False
    engine: str = ""
    """Of the nodes: a kind, or a TOML table of its options; empty for what the run suggests."""
    capacity: int | None = None
    """Episodes a node runs at once; None for its default."""
    drain_s: float = 600.0
    """A node that is to go gets so long to finish or hand back."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """What only its provider knows."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_nodes <= self.max_nodes:
            found = f"found min_nodes {self.min_nodes}, max_nodes {self.max_nodes}"
            raise InvalidInput(f"pool {self.id}: bounds are 0 <= min_nodes <= max_nodes, {found}")
        for name in ("usd_per_hour_max", "usd_per_day_max", "drain_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InvalidInput(f"pool {self.id}: {name} is {value}, and has to be 0 or more")


class InstanceState(Enum):
    """An instance as the ledger has it; `maintainer.fleet.lifecycle` draws the way through these."""

    INTENDED = "intended"
    """Written down; the provider may have it or not."""
    PENDING = "pending"
    """The provider has taken it; it is being made, or boots."""
    RUNNING = "running"
    """It runs; its node has not taken part yet."""
    READY = "ready"
    """Its node works."""
    DRAINING = "draining"
    """Its node finishes or hands back what it has."""
    RETIRING = "retiring"
    """The provider was, or is to be, asked to end it."""
    SUSPECT = "suspect"
    """Something was seen of it that does not fit: it is looked at again, and left alone."""
    GONE = "gone"
    """It has ended, or never was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One machine in the ledger. Times are Unix seconds, None for what has not come yet."""

    id: LaunchId
    pool: PoolId
    state: InstanceState
    provider: str
    handle: str = ""
    """The provider's own id; empty while none is known."""
    type: str = ""
    region: str = ""
    is_spot: bool = False
    usd_per_hour: float = 0.0
    actor: str
    """Who had it launched."""
    reason: str
    intended_at: float
    expires_at: float
    launched_at: float | None = None
    ready_at: float | None = None
    draining_at: float | None = None
    retiring_at: float | None = None
    gone_at: float | None = None
    cause: Cause | None = None
    """What made it go; None while it stays, and of what went before ledgers said so."""
    message: str = ""
    """What is to be known about it: why it goes, or what went wrong."""

    @property
    def left_at(self) -> float | None:
        """When it began to go; None while it stays."""
        times = (self.draining_at, self.retiring_at, self.gone_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def was_lost(self) -> bool:
        """Whether it worked, and goes or went without having been asked."""
        return self.ready_at is not None and self.cause in LOSSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool as the fleet service sees it now."""

    spec: PoolSpec
    version: int
    """Grows with every change of the spec and of what the pool consists of."""
    target: int
    """Nodes it is to have, by the last plan that was applied."""
    nodes: Mapping[InstanceState, int]
    """Instances in each state; those that are gone left out."""
    leaving: Mapping[Cause, int] = field(default_factory=dict)
    """Of those that drain or are retired, how many each cause made go."""
    losses: Mapping[Cause, int] = field(default_factory=dict)
    """Nodes that worked and went within the last hour without having been asked, by cause."""
    usd_per_hour: float
    usd_today: float
    rule_target: int | None
    """What the rule advises; None while it says nothing."""
    launch_delay_s: float
    """From the intent to a node that works: the 90th percentile of what was measured, else what the provider says."""
    hold_until: float | None = None
    """No node is taken away before."""
    hold_reason: str = ""
    breaker_until: float | None = None
    """Too many launches failed: none is tried before."""
    last_change_at: float | None = None
    simulated: tuple[str, ...] = ()
    """What of its provider is a stand-in."""
    can_lose: bool = False
    """Whether nodes can be lost on somebody's word: a simulated fault."""


class Verdict(Enum):
    """What the guard says of a plan."""

    ALLOWED = "allowed"
    NEEDS_APPROVAL = "needs_approval"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule of the guard that a plan touches."""

    code: str
    """A word for programs: `envelope`, `max_nodes`."""
    verdict: Verdict
    message: str
    """A sentence that says what was found and what would work."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What the sentence is about, for programs: `target`, `limit`, `usd`, `left_s`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A change of one pool that somebody wants: a size, or certain nodes gone."""

    pool: PoolId
    actor: Actor
    reason: str
    target: int | None = None
    retire: tuple[LaunchId, ...] = ()
    """Those and no others; not together with `target`."""
    is_kill: bool = False
    """Without a drain; for admins."""

    def __post_init__(self) -> None:
        if (self.target is None) == (not self.retire):
            raise InvalidInput("a plan states either a target or which instances to retire")
        if not self.reason.strip():
            raise InvalidInput("a plan needs a reason: the journal keeps it")
        if len(self.reason) > 2000:
            raise InvalidInput(f"a reason has at most 2000 characters, this one {len(self.reason)}")
        if self.target is not None and not 0 <= self.target <= 1_000_000:
            raise InvalidInput(f"a target is a number of nodes, not {self.target}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What applying a request would do. Nothing has happened yet."""

    id: PlanId
    request: PlanRequest
    observed_version: int
    """Of the pool."""
    nodes: int
    """It has now, or has ordered; those on their way out not counted."""
    target: int
    launches: int
    victims: tuple[LaunchId, ...]
    eta_s: float
    """Until the pool has that size, as far as launch delays and drains are known."""
    usd_per_hour_change: float
    verdict: Verdict
    findings: tuple[Finding, ...]
    created_at: float
    expires_at: float
    rule_target: int | None = None
    """What the rule wanted when it was made; None when it said nothing."""
    hold_s: float = 0.0
    """With it no node of the pool is taken away for so long: the rule wants fewer, and would do so at its next look."""
    guard_json: str = ""
    """All that the guard was told: `maintainer.fleet.evidence` asks it again."""

    @property
    def needs_approval(self) -> bool:
        """Whether somebody else has to agree."""
        return self.verdict is Verdict.NEEDS_APPROVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What came of applying a plan; the same for every call with the same key."""

    plan: PlanId
    decision: int
    """Ordinal in the journal."""
    launched: tuple[LaunchId, ...]
    retired: tuple[LaunchId, ...]
    message: str
    guard_json: str = ""
    """All that the guard was told when it was applied."""
    hold_until: float | None = None
    """Until then no node of the pool is taken away; None when it set no hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One entry of the journal."""

    ordinal: int
    at: float
    kind: str
    """`apply`, `refuse`, `spec`, `hold`, `escalate`, `kill_switch`, `orphan`, `launch_failed`, `fault`, `propose`,
    `reject`, `note`, `maintainer_mode`, `alarm`, `alarm_over`."""
    pool: str
    """Empty for what concerns no single pool."""
    actor: Actor
    reason: str
    message: str
    """One sentence: what was done."""
    key: str = ""
    """Idempotency key, where the caller gave one."""
    findings: tuple[Finding, ...] = ()
    """What the guard said of a plan that was applied or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A simulated fault: nodes that end at once, as if their machines had failed."""

    decision: Decision
    lost: tuple[LaunchId, ...]


class KillScope(Enum):
    """Whom the kill switch stops."""

    NONE = "none"
    """Off."""
    AGENTS = "agents"
    """Models and programs; the rule and people go on."""
    ALL = "all"
    """Everybody: nothing is launched or retired until an admin turns it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """The service as a whole."""

    cluster: str
    """The tag of all that is its own."""
    at: float
    pools: tuple[Pool, ...]
    kill: KillScope
    kill_reason: str
    usd_per_hour: float
    usd_today: float
    last_sweep_at: float | None
    orphans: int
    """Instances with this cluster's tag that the ledger does not know; they are watched, then ended."""
    waiting: int = 0
    """Proposals that wait for a person."""
    troubles: tuple[str, ...] = ()
    """What somebody has to do something about, each a sentence."""
