"""Refreshes the scorecard periodically, for the status."""

import asyncio
from pathlib import Path

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet.maintainer import LiveScore, MaintainerScore
from astraflow.contract.fleet.plans import Actor
from astraflow.runtime.clock import Clock
from maintainer.agent.observation.snapshot import Snapshot
from maintainer.agent.scorecard.leaderboard import evaluation
from maintainer.agent.scorecard.live_run import WhatIfSource, applied_changes, live_score

REFRESH_S = 60.0
"""Interval between refreshes."""
NO_CHANGES = "the maintainer made no change in the last day"


class Scorecard:
    """Scorecard of one process."""

    def __init__(
        self, *, model: str, leaderboard: Path | None, actor: Actor, port: WhatIfSource | None, clock: Clock
    ) -> None:
        """model: name in a leaderboard. leaderboard: path, None for no evaluation. port: source of replays, None for no
        live score."""
        self._model = model
        self._leaderboard = leaderboard.absolute() if leaderboard is not None else None
        self._actor = actor
        self._what_if_source = port
        self._clock = clock
        self._next_at = clock.now()
        self.evaluation: MaintainerScore | None = None
        self.evaluation_problem = ""
        """Reason why there is no score."""
        self.live: LiveScore | None = None
        self.live_problem = ""
        """Reason why there is no score, or no newer one."""

    @property
    def source(self) -> str:
        """Path of the leaderboard; empty for none."""
        return str(self._leaderboard or "")

    async def refresh(self, snapshot: Snapshot) -> None:
        """Refreshes the scores if the interval has passed."""
        if self._clock.now() < self._next_at:
            return
        self._next_at = self._clock.now() + REFRESH_S
        if self._leaderboard is not None:
            await self._read(self._leaderboard)
        if self._what_if_source is not None:
            await self._score_live(self._what_if_source, snapshot)

    async def _read(self, leaderboard: Path) -> None:
        try:
            self.evaluation = await asyncio.to_thread(evaluation, leaderboard, self._model)
            self.evaluation_problem = ""
        except InvalidInput as problem:
            self.evaluation, self.evaluation_problem = None, str(problem)

    async def _score_live(self, port: WhatIfSource, snapshot: Snapshot) -> None:
        changes = applied_changes(self._actor, snapshot.decisions, at=snapshot.at)
        try:
            self.live = await live_score(port, changes, snapshot.fleet.pools, at=snapshot.at)
            self.live_problem = "" if changes else NO_CHANGES
        except AstraFlowError as problem:
            self.live_problem = str(problem)
