"""Poller of the fleet service: once a second, and immediately after a change."""

from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.pools import FleetStatus
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import Backoff
from web.state.fleet_state import FleetConnection, FleetState

log = get_logger()

POLL_INTERVAL_S = 1.0
MAX_RETRY_DELAY_S = 5.0


class FleetSource(Protocol):
    """Interface of the polled service: the client of the fleet plane."""

    async def status(self) -> FleetStatus:
        """Returns the status of the service and its pools."""


class FleetPoller:
    """Keeps a `FleetState` up to date."""

    def __init__(self, source: FleetSource, state: FleetState, *, clock: Clock) -> None:
        self._source = source
        self._state = state
        self._clock = clock

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
        except AstraFlowError as error:
            if self._state.connection is FleetConnection.LIVE:
                log.warning("connection to the fleet service lost", problem=str(error))
            self._state.record_failure(str(error))
