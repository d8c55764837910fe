"""The fleet service's providers, and whether each would do its part: asked, with nothing started."""

from dataclasses import dataclass
from enum import Enum

from astraflow.contract.ids import PoolId


class CheckKind(Enum):
    """What a provider was asked for."""

    LIST = "list"
    """What it has under the cluster's tag: whether it is reached, and may be looked at."""
    LAUNCH = "launch"
    """Whether a machine of a pool would be let through."""
    PRICE = "price"
    """What that machine would cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question, and what came of it."""

    kind: CheckKind
    pool: PoolId | None = None
    """Whose spec it was asked with; None for what concerns no single pool."""
    is_ok: bool
    message: str
    """What was found. No secret is in it."""
    to_do: str = ""
    """A sentence that says what would help; empty when nothing has to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One provider, asked once."""

    provider: str
    began_at: float
    """Unix seconds."""
    took_s: float
    by: str
    """Who wanted to know."""
    checks: tuple[Check, ...]

    @property
    def is_ok(self) -> bool:
        """Whether all of it would work."""
        return all(check.is_ok for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFacts:
    """A provider as the fleet service is configured with it. Credentials are not part of it."""

    name: str
    """Of the configuration's own choosing: what pools name."""
    kind: str
    """`local_process`, `ec2`, `kubernetes`, ..."""
    pools: tuple[PoolId, ...]
    """Those that take their machines from it."""
    simulated: tuple[str, ...] = ()
    """What of it is a stand-in."""
    has_spot: bool = False
    last: Rehearsal | None = None
    """The latest one since the service began."""
