"""Fleet service of a followed run: its client, a poller of its status, and a cache of the maintainer's state."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import AstraFlowError, Unavailable
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import Maintainer, Proposal
from astraflow.contract.fleet.pools import FleetStatus, KillScope
from astraflow.contract.ids import Name, PoolId
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import Backoff
from web.process_settings import Settings
from web.state.fleet_state import FleetConnection, FleetState

log = get_logger()

POLL_INTERVAL_S = 1.0
POLLED_DECISIONS = 50
"""Latest decisions of each poll, which become annotations."""

MAX_RETRY_DELAY_S = 5.0


class FleetSource(Protocol):
    """Interface of the polled service: the client of the fleet plane."""

    async def status(self) -> FleetStatus:
        """Returns the status of the service and its pools."""

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """Returns the audit log, newest first."""


class FleetPoller:
    """Keeps a `FleetState` up to date. on_decisions: called with the latest decisions at each poll."""

    def __init__(
        self,
        source: FleetSource,
        state: FleetState,
        *,
        clock: Clock,
        on_decisions: Callable[[tuple[Decision, ...]], None] = lambda decisions: None,
    ) -> None:
        self._source = source
        self._state = state
        self._clock = clock
        self._on_decisions = on_decisions

    async def run(self) -> None:
        """Polls until cancelled."""
        backoff = Backoff(self._clock, first_s=POLL_INTERVAL_S, max_s=MAX_RETRY_DELAY_S)
        while True:
            await self.poll()
            if self._state.connection is FleetConnection.LIVE:
                backoff.reset()
                await self._clock.sleep(POLL_INTERVAL_S)
            else:
                self._state.schedule_retry(backoff.next_s)
                await backoff.wait()

    async def poll(self) -> None:
        """Polls once. A failure is recorded in the state, never raised."""
        try:
            self._state.update(await self._source.status())
            self._on_decisions(await self._source.decisions(limit=POLLED_DECISIONS))
        except AstraFlowError as error:
            if self._state.connection is FleetConnection.LIVE:
                log.warning("connection to the fleet service lost", problem=str(error))
            self._state.record_failure(str(error))


MAX_AGE_S = 1.0
SHOWN_PROPOSALS = 20


class MaintainerSource(Protocol):
    """Interface of the source: the client of the fleet plane."""

    async def maintainer(self) -> Maintainer:
        """Returns the mode of the maintainer and its latest status."""

    async def proposals(self, *, only_waiting: bool = True, limit: int = 100) -> tuple[Proposal, ...]:
        """Returns plans that wait for approval, or all plans; newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerSnapshot:
    """Snapshot of the maintainer."""

    maintainer: Maintainer | None = None
    """None until the fleet service has answered."""
    proposals: tuple[Proposal, ...] = ()
    """Latest proposals, waiting or decided; newest first."""
    problem: str = ""
    """Cause why it could not be updated; empty otherwise."""

    def proposal(self, plan: Name) -> Proposal | None:
        """Returns the proposal of a plan; None for an unknown plan."""
        return next((proposal for proposal in self.proposals if proposal.plan.id == plan), None)


class MaintainerCache:
    """Cache of one run. source: None for a run without a fleet service."""

    def __init__(self, source: MaintainerSource | None, *, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._snapshot = MaintainerSnapshot()
        self._fetched_at: float | None = None
        self._lock = asyncio.Lock()

    async def snapshot(self) -> MaintainerSnapshot:
        """Returns a snapshot that is at most a second old. A failure is recorded in it, never raised."""
        async with self._lock:
            is_fresh = self._fetched_at is not None and self._clock.now() - self._fetched_at < MAX_AGE_S
            if self._source is None or is_fresh:
                return self._snapshot
            try:
                waiting = await self._source.proposals(limit=SHOWN_PROPOSALS)
                latest = await self._source.proposals(only_waiting=False, limit=SHOWN_PROPOSALS)
                waiting_ids = {proposal.plan.id for proposal in waiting}
                merged = (*waiting, *(proposal for proposal in latest if proposal.plan.id not in waiting_ids))
                self._snapshot = MaintainerSnapshot(maintainer=await self._source.maintainer(), proposals=merged)
            except AstraFlowError as error:
                self._snapshot = replace(self._snapshot, problem=str(error))
            self._fetched_at = self._clock.now()
            return self._snapshot

    def invalidate(self) -> None:
        """Discards the snapshot after a change."""
        self._fetched_at = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedFleet:
    """Fleet service of a followed run: its client and its newest state."""

    settings: Settings
    client: FleetPlaneClient | None
    """None for a run without a fleet service."""
    state: FleetState
    poller: FleetPoller | None
    """None for a run without a fleet service."""

    def require_client(self) -> FleetPlaneClient:
        """Returns the client of the fleet plane. Raises: Unavailable for a run without a fleet service."""
        if self.client is None:
            raise Unavailable(
                "cannot reach a fleet service: none is configured; start one, and the page with --fleet HOST:PORT",
                code="fleet.not_configured",
            )
        return self.client

    @property
    def kill(self) -> KillScope:
        """Scope of the kill switch; none while it is unknown."""
        return self.state.status.kill if self.state.status is not None else KillScope.NONE

    @property
    def now(self) -> float:
        """Unix seconds."""
        return self.state.clock.wall()
