"""Configuration of the fleet service: providers, pools, budgets and limits."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import Name, PoolId
from astraflow.runtime.config.base import Config, suggest_name
from maintainer.fleet.guard.rules import Limits
from maintainer.fleet.providers import providers


class PoolConfig(Config):
    """Initial settings of a pool. Once the pool is in the ledger, the ledger's spec applies."""

    provider: str
    """Name of an entry of `providers`."""
    mode: Mode = Mode.ADVISE
    """`off`, `advise`, `up-only` or `on`."""
    nodes: int | None = Field(default=None, ge=0)
    """Initial number of nodes; `min_nodes` when absent."""
    min_nodes: int = Field(default=0, ge=0)
    """Minimum number of nodes."""
    max_nodes: int = Field(default=8, ge=0)
    """Maximum number of nodes."""
    usd_per_hour_max: float | None = Field(default=None, ge=0)
    """Hourly budget of the pool in US dollars; unlimited when absent."""
    usd_per_day_max: float | None = Field(default=None, ge=0)
    """Budget of the pool for a UTC day in US dollars; unlimited when absent."""
    type: str = ""
    """Instance type, as the provider names it; the provider's default when empty."""
    region: str = ""
    """Region of the instances; the provider's default when empty."""
    is_spot: bool = False
    """Use cheaper spot instances, which the provider may preempt."""
    engine: str = ""
    """Inference engine: a kind, or a TOML table of options as text; the run's default when empty."""
    capacity: int | None = Field(default=None, ge=1)
    """Episodes that a node runs at once; the node's default when absent."""
    policies: tuple[str, ...] = ()
    """Policies that the nodes serve; empty: all. The run sizes no such pool: its mode must be `off` or `advise`."""
    drain_s: float = Field(default=600.0, ge=0)
    """Time in which a draining node finishes its episodes or returns partial rollouts. Seconds."""
    options: dict[str, Any] = Field(default={})
    """Options of the pool that only its provider interprets."""

    def spec(self, name: str) -> PoolSpec:
        """Returns the pool's spec. Raises: InvalidInput."""
        values = dict(self)
        del values["nodes"]
        return PoolSpec(id=PoolId(name), **values)

    @property
    def first_target(self) -> int:
        """Initial number of nodes."""
        return min(max(self.nodes or 0, self.min_nodes), self.max_nodes)


class BudgetConfig(Config):
    """Budget of all pools together."""

    usd_per_hour_max: float | None = Field(default=None, ge=0)
    """Hourly budget in US dollars; unlimited when absent."""
    usd_per_day_max: float | None = Field(default=None, ge=0)
    """Budget for a UTC day in US dollars; unlimited when absent."""


class LimitsConfig(Config):
    """Limits of changes that need no approval by a person."""

    nodes: int = Field(default=2, ge=0)
    """Maximum distance of a target from the rule's target in nodes,"""
    share: float = Field(default=0.25, ge=0)
    """or as a share of the rule's target, whichever is larger."""
    changes_per_hour: int = Field(default=4, ge=1)
    """Maximum number of plans applied to a pool within an hour, not counting replacements of lost nodes."""
    cool_down_s: float | None = Field(default=None, ge=0)
    """Minimum time between two changes of a pool; the 90th percentile of its launch delays when absent."""
    stale_after_s: float = Field(default=90.0, gt=0)
    """Age of dataflow's latest report above which no node is retired."""
    hold_s: float = Field(default=600.0, ge=0)
    """Duration of the hold that a plan above the rule's target sets, once nodes are ready; 0: none."""
    rejected_s: float = Field(default=3600.0, ge=0, le=86400)
    """Time for which agents are refused a plan that a person rejected, or a larger one; 0: no time."""


class TimesConfig(Config):
    """Intervals and timeouts, in seconds."""

    tick_s: float = Field(default=1.0, gt=0)
    """Interval of the actuator."""
    follow_s: float = Field(default=5.0, gt=0)
    """Interval at which the rule's recommendations are checked."""
    sweep_s: float = Field(default=60.0, gt=0)
    """Interval at which the ledger is compared with the providers' lists."""
    quarantine_s: float = Field(default=300.0, ge=0)
    """Time for which an orphaned instance is watched before it is terminated."""
    call_timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of a provider call. The next sweep checks whether a timed-out call succeeded."""
    retry_s: float = Field(default=5.0, gt=0)
    """First delay before a call is retried; doubles up to a minute."""
    terminate_timeout_s: float = Field(default=300.0, gt=0)
    """Time after a termination request from which an instance that still exists is reported as a problem."""
    start_timeout_s: float = Field(default=900.0, gt=0)
    """Time after which a node that is not ready is retired; at most twice the usual launch delay."""
    suspect_timeout_s: float = Field(default=300.0, ge=0)
    """Time for which an instance may be in an inconsistent state before it is drained and replaced."""
    lost_after_s: float = Field(default=60.0, ge=0)
    """Time without a heartbeat, or without the node in dataflow's reports, after which it is retired and replaced."""
    breaker_s: float = Field(default=600.0, ge=0)
    """Delay of the next launch after three consecutive failures."""
    plan_valid_s: float = Field(default=300.0, gt=0)
    """Validity of a plan."""
    proposal_valid_s: float = Field(default=900.0, gt=0)
    """Validity of a proposed plan that waits for approval."""
    max_age_s: float = Field(default=7 * 86400.0, gt=0)
    """Maximum age of an instance. Between 60 % and 90 % of it, instances are replaced a few at a time."""
    dataflow_timeout_s: float = Field(default=900.0, ge=0)
    """Time without an answer from dataflow after which a node terminates itself; 0: never."""


class FleetConfig(Config):
    """Configuration of the fleet service of a run."""

    cluster: str = ""
    """Tag of all instances of this service, which no other fleet service of the accounts in use may have; `astraflow-`
    and the ledger's random identity when empty."""
    database: str = ""
    """URL of the ledger, as in `postgresql+psycopg://...`; a SQLite file in the service's directory when empty."""
    providers: dict[str, dict[str, Any]] = Field(min_length=1)
    """Providers by a name of your choice: `kind` and its options."""
    pools: dict[str, PoolConfig] = Field(default={})
    """Pools by name."""
    budget: BudgetConfig = BudgetConfig()
    """Budget of all pools together."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of changes without approval."""
    times: TimesConfig = TimesConfig()
    """Intervals and timeouts."""
    retire_on_stop: bool = False
    """Retire all nodes when the service stops; otherwise they keep running, and the next start finds them."""

    @field_validator("cluster")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            return Name(value) if value else value
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None

    @model_validator(mode="after")
    def _fits_together(self) -> "FleetConfig":
        try:
            for spec in self.providers.values():
                providers.check(spec)
            for name, pool in self.pools.items():
                pool.spec(name)
                if pool.provider not in self.providers:
                    hint = suggest_name(pool.provider, list(self.providers))
                    raise InvalidInput(
                        f"cannot use pool {name!r}: no provider is named {pool.provider!r}; {hint}",
                        code="fleet.unknown_provider",
                    )
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None
        return self

    def guard_limits(self) -> Limits:
        """Returns the limits for the guard."""
        return Limits(
            unapproved_nodes=self.limits.nodes,
            unapproved_share=self.limits.share,
            changes_per_hour=self.limits.changes_per_hour,
            stale_after_s=self.limits.stale_after_s,
            hold_s=self.limits.hold_s,
            rejected_s=self.limits.rejected_s,
            usd_per_hour_max=self.budget.usd_per_hour_max,
            usd_per_day_max=self.budget.usd_per_day_max,
        )


def provider_directory(directory: Path, name: str) -> Path:
    """Returns the directory of a provider's persistent files."""
    return directory / "providers" / name
