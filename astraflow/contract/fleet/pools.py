"""Pools: their configuration and current state, and the state of the whole fleet service."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.instances import Cause, InstanceState
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.fleet.run_changes import RUN
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.contract.records import Record
from astraflow.contract.values import Json


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
        if self.id == RUN:
            raise InvalidInput(
                f"cannot define pool {str(RUN)!r}: the name stands for the run itself; choose another name",
                code="pool.reserved_name",
            )
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
    hold_until_at: float | None = None
    """End of the hold, during which no node is removed; None without a hold."""
    hold_reason: str = ""
    """Reason of the hold; empty without one."""
    breaker_until: float | None = None
    """No launch is tried before this time because too many failed; None otherwise."""
    last_change_at: float | None = None
    """Time of the last applied change. Unix seconds; None before the first."""
    simulated: tuple[str, ...] = ()
    """Simulated parts of its provider."""
    can_inject_fault: bool = False
    """True if the provider supports fault injection."""


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
    """Instances with this cluster's tag that are not in the ledger; they are observed, then terminated or reported."""
    waiting: int = 0
    """Proposals that wait for approval."""
    problems: tuple[Record, ...] = ()
    """Problems that need an action by a person."""
