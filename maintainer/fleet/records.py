"""Records of the ledger: pools, launches, orphans, settings and replies."""

from dataclasses import dataclass

from astraflow.contract.fleet import Instance, KillScope, LaunchId, PoolSpec
from astraflow.contract.maintainer import MaintainerMode
from maintainer.fleet.providers.base import LaunchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """A pool: its spec and its state."""

    spec: PoolSpec
    version: int
    target: int
    override_until_at: float | None = None
    override_reason: str = ""
    failures: int = 0
    """Consecutive failed launches."""
    breaker_until: float | None = None
    changed_at: tuple[float, ...] = ()
    """Unix seconds of the latest applied plans, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """A launch, from the intent on."""

    instance: Instance
    launch: LaunchSpec
    """Request to the provider, equal at every attempt; without the token."""
    tries: int = 0
    """Attempts of the current step: launch, drain or retire."""
    next_try_at: float = 0.0
    missed: int = 0
    """Consecutive provider lists without the instance."""
    is_drain_requested: bool = False
    """Dataflow was asked to drain the node."""
    suspect_at: float | None = None
    """Unix seconds since when the instance is SUSPECT; None while it is not."""

    @property
    def id(self) -> LaunchId:
        """Launch id."""
        return self.instance.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An instance with the cluster's tag and without a live launch in the ledger."""

    provider: str
    handle: str
    launch_id: str
    seen_at: float
    """Unix seconds at which the orphan was first seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSwitch:
    """State of the kill switch."""

    scope: KillScope = KillScope.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerSetting:
    """Mode of the maintainer, as an operator set it last."""

    mode: MaintainerMode
    by: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Stored reply to a change, for its idempotency key."""

    key: str
    request_hash: str
    """Hash of the request under the key."""
    reply_json: str
    at: float
