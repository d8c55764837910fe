"""What pages know of the maintainer: asked of the fleet service when somebody looks, once a second for all who look."""

import asyncio
from dataclasses import dataclass, replace
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import Name
from astraflow.contract.maintenance import Maintainer, Proposal
from astraflow.runtime.clock import Clock

FRESH_S = 1.0
SHOWN_PROPOSALS = 20


class MaintainerSource(Protocol):
    """What is asked: the client of the fleet plane."""

    async def maintainer(self) -> Maintainer:
        """What people told it, and how it says it is."""

    async def proposals(self, *, only_waiting: bool = True, limit: int = 100) -> tuple[Proposal, ...]:
        """Plans that wait for a person, or all there were; newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerLook:
    """One look."""

    maintainer: Maintainer | None = None
    """None while the fleet service has not answered."""
    proposals: tuple[Proposal, ...] = ()
    """The latest, waiting or decided; newest first."""
    problem: str = ""
    """Why there is nothing newer."""

    def proposal(self, plan: Name) -> Proposal | None:
        """The one with that plan."""
        return next((one for one in self.proposals if one.plan.id == plan), None)


class MaintainerWatch:
    """One for the process. source: None for a run without a fleet service."""

    def __init__(self, source: MaintainerSource | None, *, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._look = MaintainerLook()
        self._looked_at: float | None = None
        self._lock = asyncio.Lock()

    async def look(self) -> MaintainerLook:
        """The newest one, at most a second old. A failure is noted in it, never raised; what was known stays."""
        async with self._lock:
            is_fresh = self._looked_at is not None and self._clock.now() - self._looked_at < FRESH_S
            if self._source is None or is_fresh:
                return self._look
            try:
                waiting = await self._source.proposals(limit=SHOWN_PROPOSALS)
                latest = await self._source.proposals(only_waiting=False, limit=SHOWN_PROPOSALS)
                known = {one.plan.id for one in waiting}
                merged = (*waiting, *(one for one in latest if one.plan.id not in known))
                self._look = MaintainerLook(maintainer=await self._source.maintainer(), proposals=merged)
            except AstraFlowError as problem:
                self._look = replace(self._look, problem=str(problem))
            self._looked_at = self._clock.now()
            return self._look

    def forget(self) -> None:
        """Something was changed: the next look is a new one."""
        self._looked_at = None
