"""Providers of the fleet service, and preflight checks of them that start nothing."""

from dataclasses import dataclass
from enum import Enum

from astraflow.contract.ids import PoolId


class CheckKind(Enum):
    """Kind of request that a preflight check makes to a provider."""

    LIST = "list"
    """Lists the instances with the cluster's tag: checks connection and read permission."""
    LAUNCH = "launch"
    """Dry-runs the launch of an instance of a pool."""
    PRICE = "price"
    """Quotes the price of that instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightCheck:
    """One check and its result."""

    kind: CheckKind
    """Kind of request."""
    pool: PoolId | None = None
    """Pool whose spec the check used; None for checks that concern no single pool."""
    is_ok: bool
    """True if the check passed."""
    message: str
    """Result as a sentence, without secrets."""
    remedy: str = ""
    """Remedy, as a sentence; empty when nothing needs to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """Preflight checks of one provider at one time."""

    provider: str
    """Name of the provider."""
    began_at: float
    """Unix seconds."""
    duration_s: float
    """Duration of all checks. Seconds."""
    requested_by: str
    """Name of the requester."""
    checks: tuple[PreflightCheck, ...]
    """Results of the checks."""

    @property
    def is_ok(self) -> bool:
        """Returns whether all checks passed."""
        return all(check.is_ok for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """A provider as configured in the fleet service, without credentials."""

    name: str
    """Name in the configuration, which pools refer to."""
    kind: str
    """`local_process`, `ec2`, `kubernetes`, ..."""
    pools: tuple[PoolId, ...]
    """Pools that launch their instances through it."""
    simulated: tuple[str, ...] = ()
    """Simulated parts of the provider."""
    has_spot: bool = False
    """True if it offers preemptible instances at a lower price."""
    last_preflight: PreflightResult | None = None
    """Latest preflight since the service began; None before the first."""
