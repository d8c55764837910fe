"""Instances: machines or processes that a provider started, their states and the causes of their end."""

from dataclasses import dataclass
from enum import Enum

from astraflow.contract.ids import Name, PoolId


class Cause(Enum):
    """Cause of the end of a node or instance. The first recorded cause is final, except that `LOST` becomes `PREEMPTED`
    when the provider reports a preemption later."""

    REQUESTED = "requested"
    """A person, the scaling rule or a program requested it."""
    PREEMPTED = "preempted"
    """The provider reclaims the instance after a notice, as with spot instances."""
    LOST = "lost"
    """Terminated or unreachable after it had worked, without a request."""
    FAILED = "failed"
    """Never worked: launch refused, stuck, too late, or terminated before the node joined."""
    EXPIRED = "expired"
    """Reached the maximum age of instances."""
    INCONSISTENT = "inconsistent"
    """Observations contradicted its recorded state for too long."""


LOSSES = (Cause.PREEMPTED, Cause.LOST)
"""Causes that count as losses: the node worked and ended without a request."""


class LaunchId(Name):
    """Identifier of an instance, from the intent to start it: a ULID. It is also the tag at the provider and the node
    name."""

    __slots__ = ()


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
