"""What the ledger keeps, beyond what it says of it: one pool, one launch, one orphan."""

from dataclasses import dataclass

from astraflow.contract.fleet import Instance, KillScope, LaunchId, PoolSpec
from astraflow.contract.maintenance import MaintainerMode
from maintainer.fleet.providers.base import LaunchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """One pool: its spec, and where it stands."""

    spec: PoolSpec
    version: int
    target: int
    hold_until: float | None = None
    hold_reason: str = ""
    failures: int = 0
    """Launches that failed since one worked."""
    breaker_until: float | None = None
    changed_at: tuple[float, ...] = ()
    """When the latest plans were applied, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One launch, from the intent on."""

    instance: Instance
    launch: LaunchSpec
    """What is asked of the provider, the same at every try; without the token."""
    tries: int = 0
    """Of what is to be done now: launch, drain or retire."""
    next_try_at: float = 0.0
    missed: int = 0
    """Lists in a row that it was not in."""
    is_told: bool = False
    """Dataflow was asked to drain its node."""
    suspect_at: float | None = None
    """Unix seconds since when it has been SUSPECT; None while it is not."""

    @property
    def id(self) -> LaunchId:
        """Of the launch."""
        return self.instance.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An instance with the cluster's tag that no living launch stands for."""

    provider: str
    handle: str
    launch_id: str
    seen_at: float
    """First."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The kill switch."""

    scope: KillScope = KillScope.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerOrder:
    """What people told the maintainer last."""

    mode: MaintainerMode
    by: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a change was answered with."""

    key: str
    asked: str
    """Hash of what was asked for under the key."""
    reply_json: str
    at: float
