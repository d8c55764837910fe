"""What the pages know of the fleet: the service's newest word, and how old it is."""

from dataclasses import dataclass, replace
from enum import Enum

from astraflow.contract.fleet import FleetStatus, Pool
from astraflow.runtime.clock import Clock
from web.settings import STALE_AFTER_S


class FleetFeed(Enum):
    """The connection to the fleet service."""

    ABSENT = "absent"
    """This process was told of none: `web.present.fleet.start_command` says how to have one."""
    CONNECTING = "connecting"
    """Nothing has arrived yet."""
    LIVE = "live"
    LOST = "lost"
    """It failed after it was live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLook:
    """One look at the fleet."""

    feed: FleetFeed
    problem: str = ""
    """Why there is nothing newer."""
    status: FleetStatus | None = None


class FleetState:
    """Written by the poller, read by everything else."""

    def __init__(self, clock: Clock, *, is_absent: bool) -> None:
        self._clock = clock
        self._received_at = 0.0
        self._next_try_at: float | None = None
        self._look = FleetLook(feed=FleetFeed.ABSENT if is_absent else FleetFeed.CONNECTING)

    @property
    def status(self) -> FleetStatus | None:
        """The newest one; None before the first."""
        return self._look.status

    @property
    def feed(self) -> FleetFeed:
        """How the connection does."""
        return self._look.feed

    @property
    def problem(self) -> str:
        """Why it does not do well; empty when it does."""
        return self._look.problem

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest status arrived; None before the first."""
        return None if self.status is None else self._clock.now() - self._received_at

    @property
    def is_stale(self) -> bool:
        """Whether it is too old to act on."""
        age_s = self.age_s
        return age_s is None or age_s >= STALE_AFTER_S

    @property
    def next_try_s(self) -> float | None:
        """Seconds until a service that did not answer is asked again; None while it answers."""
        return None if self._next_try_at is None else max(0.0, self._next_try_at - self._clock.now())

    def rest(self, next_try_s: float) -> None:
        """Note in how many seconds it is asked again."""
        self._next_try_at = self._clock.now() + next_try_s

    def pool(self, name: str) -> Pool | None:
        """The pool of that name, as it was last seen."""
        return next((pool for pool in self.status.pools if pool.spec.id == name), None) if self.status else None

    def update(self, status: FleetStatus) -> None:
        """Take the newest status."""
        self._received_at = self._clock.now()
        self._next_try_at = None
        self._look = FleetLook(feed=FleetFeed.LIVE, status=status)

    def lose(self, problem: str) -> None:
        """Note that it could not be asked, and why."""
        feed = FleetFeed.CONNECTING if self.status is None else FleetFeed.LOST
        self._look = replace(self._look, feed=feed, problem=problem)
