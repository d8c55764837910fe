"""State of the fleet service as pages show it: the newest status and its age."""

from dataclasses import dataclass, replace
from enum import Enum

from astraflow.contract.fleet.pools import FleetStatus, Pool
from astraflow.runtime.clock import Clock
from web.process_settings import STALE_AFTER_S


class FleetConnection(Enum):
    """State of the connection to the fleet service."""

    ABSENT = "absent"
    """No fleet service is configured; `web.process_settings.Settings.start_command` shows how to start one."""
    CONNECTING = "connecting"
    """No status has been received yet."""
    LIVE = "live"
    LOST = "lost"
    """Failed after it was live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """One snapshot of the fleet."""

    connection: FleetConnection
    problem: str = ""
    """Cause of the failed connection; empty while it works."""
    status: FleetStatus | None = None


class FleetState:
    """Newest known state of the fleet. Written by the poller, read by everything else."""

    def __init__(self, clock: Clock, *, is_absent: bool) -> None:
        self.clock = clock
        self._received_at = 0.0
        self._next_try_at: float | None = None
        self._snapshot = FleetSnapshot(connection=FleetConnection.ABSENT if is_absent else FleetConnection.CONNECTING)

    @property
    def status(self) -> FleetStatus | None:
        """Newest status; None before the first."""
        return self._snapshot.status

    @property
    def current_status(self) -> FleetStatus | None:
        """Newest status; None before the first, and once it is too old to describe the present."""
        return None if self.is_stale else self.status

    @property
    def connection(self) -> FleetConnection:
        """State of the connection."""
        return self._snapshot.connection

    @property
    def problem(self) -> str:
        """Cause of the failed connection; empty while it works."""
        return self._snapshot.problem

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest status arrived; None before the first."""
        return None if self.status is None else self.clock.now() - self._received_at

    @property
    def is_stale(self) -> bool:
        """Whether the status is too old to act on."""
        age_s = self.age_s
        return age_s is None or age_s >= STALE_AFTER_S

    @property
    def next_try_s(self) -> float | None:
        """Seconds until the next attempt to reach the service; None while it answers."""
        return None if self._next_try_at is None else max(0.0, self._next_try_at - self.clock.now())

    def schedule_retry(self, next_try_s: float) -> None:
        """Records the time until the next attempt. Seconds."""
        self._next_try_at = self.clock.now() + next_try_s

    def pool(self, name: str) -> Pool | None:
        """Returns a pool of the newest status by name; None for an unknown one."""
        return next((pool for pool in self.status.pools if pool.spec.id == name), None) if self.status else None

    def update(self, status: FleetStatus) -> None:
        """Records a new status."""
        self._received_at = self.clock.now()
        self._next_try_at = None
        self._snapshot = FleetSnapshot(connection=FleetConnection.LIVE, status=status)

    def record_failure(self, problem: str) -> None:
        """Records a failed poll with its cause."""
        feed = FleetConnection.CONNECTING if self.status is None else FleetConnection.LOST
        self._snapshot = replace(self._snapshot, connection=feed, problem=problem)
