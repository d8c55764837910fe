"""What the fleet service is told: where machines come from, which pools there are, how far it may go."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from astraflow.contract.advice import Mode
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet import PoolSpec
from astraflow.contract.ids import Name, PoolId
from astraflow.runtime.config import Config, nearest
from maintainer.fleet.guard import Limits
from maintainer.fleet.providers import providers


class PoolConfig(Config):
    """A pool as it is made when the ledger does not have it yet; later the ledger's own counts."""

    provider: str
    """Name of one of `providers`."""
    mode: Mode = Mode.ADVISE
    """off, advise, up-only or on."""
    nodes: int | None = Field(default=None, ge=0)
    """It begins with so many; with `min_nodes` when absent."""
    min_nodes: int = Field(default=0, ge=0)
    """The pool is never made smaller."""
    max_nodes: int = Field(default=8, ge=0)
    """The pool is never made larger."""
    usd_per_hour_max: float | None = Field(default=None, ge=0)
    """US dollars; unbounded when absent."""
    usd_per_day_max: float | None = Field(default=None, ge=0)
    """US dollars of a day in UTC; unbounded when absent."""
    type: str = ""
    """The provider's name of the hardware; its default when empty."""
    region: str = ""
    """Where the machines are to stand; the provider's default when empty."""
    is_spot: bool = False
    """Cheaper machines that may be taken away."""
    engine: str = ""
    """Of the nodes: a kind, or a TOML table of options as text; what the run suggests when empty."""
    capacity: int | None = Field(default=None, ge=1)
    """Episodes a node runs at once; its default when absent."""
    drain_s: float = Field(default=600.0, ge=0)
    """A node that is to go gets so long to finish or hand back."""
    options: dict[str, Any] = Field(default={})
    """What only its provider knows."""

    def spec(self, name: str) -> PoolSpec:
        """As the ledger keeps it. Raises: InvalidInput."""
        values = dict(self)
        del values["nodes"]
        return PoolSpec(id=PoolId(name), **values)

    @property
    def first_target(self) -> int:
        """Nodes it begins with."""
        return min(max(self.nodes or 0, self.min_nodes), self.max_nodes)


class BudgetConfig(Config):
    """What all pools together may cost."""

    usd_per_hour_max: float | None = Field(default=None, ge=0)
    """US dollars; unbounded when absent."""
    usd_per_day_max: float | None = Field(default=None, ge=0)
    """US dollars of a day in UTC; unbounded when absent."""


class EnvelopeConfig(Config):
    """How far and how often a pool may be changed without a person."""

    nodes: int = Field(default=2, ge=0)
    """A target may differ from the rule's by so many nodes,"""
    share: float = Field(default=0.25, ge=0)
    """or by this share of it, whichever is more."""
    changes_per_hour: int = Field(default=4, ge=1)
    """Plans applied to one pool within an hour; lost nodes are replaced besides."""
    cool_down_s: float | None = Field(default=None, ge=0)
    """Between two changes of a pool; the 90th percentile of its launch delays when absent."""
    stale_after_s: float = Field(default=90.0, gt=0)
    """An older report of dataflow is no ground for taking a node away."""
    hold_s: float = Field(default=600.0, ge=0)
    """Who gives a pool more nodes than the rule wants has it held for so long after they can work; 0: never."""
    rejected_s: float = Field(default=3600.0, ge=0, le=86400)
    """After a person rejected a plan, agents are refused the same, or more of it, for so long; 0: not at all."""


class TimesConfig(Config):
    """Periods and patience, in seconds."""

    tick_s: float = Field(default=1.0, gt=0)
    """What is due is done this often."""
    follow_s: float = Field(default=5.0, gt=0)
    """The rule's advice is looked at this often."""
    sweep_s: float = Field(default=60.0, gt=0)
    """The ledger is compared with what providers list this often."""
    quarantine_s: float = Field(default=300.0, ge=0)
    """An instance that the ledger does not know is watched so long before it is ended."""
    call_s: float = Field(default=120.0, gt=0)
    """A provider's call is given up after so long; whether it worked is found out later."""
    retry_s: float = Field(default=5.0, gt=0)
    """First pause before a call is tried again; it doubles up to a minute."""
    going_s: float = Field(default=300.0, gt=0)
    """A machine that has not ended so long after it was asked to is a trouble that is reported."""
    starting_s: float = Field(default=900.0, gt=0)
    """A node that does not work so long after its intent, or twice the usual delay if that is less, is given up."""
    suspect_s: float = Field(default=300.0, ge=0)
    """An instance of which something is seen that does not fit, for so long, is drained, and replaced."""
    lost_s: float = Field(default=60.0, ge=0)
    """A node that dataflow has not heard of for so long is given up, and replaced."""
    breaker_s: float = Field(default=600.0, ge=0)
    """After three launches that failed, the next is tried so much later."""
    plan_s: float = Field(default=300.0, gt=0)
    """A plan can be applied for so long."""
    proposal_s: float = Field(default=900.0, gt=0)
    """A plan that was put before a person can be approved for so long."""
    expires_s: float = Field(default=7 * 86400.0, gt=0)
    """A machine older than this is drained, and replaced if its pool still needs it."""
    dead_man_s: float = Field(default=900.0, ge=0)
    """A node that dataflow has not answered for so long ends by itself; 0 for never."""


class FleetConfig(Config):
    """The fleet service of one run."""

    cluster: str = "astraflow"
    """Tag of all that is its own: no other fleet service in the same accounts may use it."""
    database: str = ""
    """URL of the ledger, as in `postgresql+psycopg://...`; a SQLite file in the service's directory when empty."""
    providers: dict[str, dict[str, Any]] = Field(min_length=1)
    """By a name of your own: `kind` and its options."""
    pools: dict[str, PoolConfig] = Field(default={})
    """By name."""
    budget: BudgetConfig = BudgetConfig()
    """Of all pools together."""
    envelope: EnvelopeConfig = EnvelopeConfig()
    """What may happen without a person."""
    times: TimesConfig = TimesConfig()
    """Periods and patience."""
    retire_on_stop: bool = False
    """End all nodes when the service is told to stop; otherwise they go on and are found again."""

    @field_validator("cluster")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            return Name(value)
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
                    hint = nearest(pool.provider, list(self.providers))
                    raise InvalidInput(f"pool {name}: no provider is called {pool.provider!r}; {hint}")
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None
        return self

    def limits(self) -> Limits:
        """As the guard reads them."""
        return Limits(
            envelope_nodes=self.envelope.nodes,
            envelope_share=self.envelope.share,
            changes_per_hour=self.envelope.changes_per_hour,
            stale_after_s=self.envelope.stale_after_s,
            hold_s=self.envelope.hold_s,
            rejected_s=self.envelope.rejected_s,
            usd_per_hour_max=self.budget.usd_per_hour_max,
            usd_per_day_max=self.budget.usd_per_day_max,
        )


def provider_directory(directory: Path, name: str) -> Path:
    """Where the provider of that name keeps what must survive a restart."""
    return directory / "providers" / name
