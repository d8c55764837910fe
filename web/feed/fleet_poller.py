"""Asks the fleet service how it is, once a second, and at once after a change."""

from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import FleetStatus
from astraflow.runtime.aio import Rests
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web.feed.fleet_state import FleetFeed, FleetState

log = get_logger()

EVERY_S = 1.0
MOST_REST_S = 5.0


class FleetSource(Protocol):
    """What is asked: the client of the fleet plane."""

    async def status(self) -> FleetStatus:
        """The service and its pools now."""


class FleetPoller:
    """Keeps a `FleetState` true."""

    def __init__(self, source: FleetSource, state: FleetState, *, clock: Clock) -> None:
        self._source = source
        self._state = state
        self._clock = clock

    async def run(self) -> None:
        """Work until cancelled."""
        rests = Rests(self._clock, first_s=EVERY_S, most_s=MOST_REST_S)
        while True:
            await self.look()
            if self._state.feed is FleetFeed.LIVE:
                rests.are_over()
                await self._clock.sleep(EVERY_S)
            else:
                self._state.rest(rests.next_s)
                await rests.take()

    async def look(self) -> None:
        """Ask once. A failure is noted in the state, never raised."""
        try:
            self._state.update(await self._source.status())
        except AstraFlowError as problem:
            if self._state.feed is FleetFeed.LIVE:
                log.warning("fleet_lost", problem=str(problem))
            self._state.lose(str(problem))
