"""Looks now and then at what is said of the maintainer, for its status."""

import asyncio
from pathlib import Path

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet import Actor
from astraflow.contract.maintenance import EvaluationScore, LiveScore
from astraflow.runtime.clock import Clock
from maintainer.sight import Sight
from maintainer.standing.board import evaluation
from maintainer.standing.live import ReplayPort, changes_of, live_score

AGAIN_S = 60.0
"""A file may be written meanwhile, and a run goes on."""


class Standing:
    """One for the process."""

    def __init__(self, *, model: str, board: Path | None, actor: Actor, port: ReplayPort | None, clock: Clock) -> None:
        """model: as a leaderboard names it. board: where one is. port: None where no run is recorded."""
        self._model = model
        self._board = board.absolute() if board is not None else None
        self._actor = actor
        self._port = port
        self._clock = clock
        self._next_at = clock.now()
        self.evaluation: EvaluationScore | None = None
        self.evaluation_problem = ""
        """Why there is none."""
        self.live: LiveScore | None = None
        self.live_problem = ""
        """Why there is none, or why it is not newer."""

    @property
    def source(self) -> str:
        """The leaderboard that is looked at; empty for none."""
        return str(self._board or "")

    async def refresh(self, sight: Sight) -> None:
        """Look again, once in a while."""
        if self._clock.now() < self._next_at:
            return
        self._next_at = self._clock.now() + AGAIN_S
        if self._board is not None:
            await self._read(self._board)
        if self._port is not None:
            await self._play(self._port, sight)

    async def _read(self, board: Path) -> None:
        try:
            self.evaluation = await asyncio.to_thread(evaluation, board, self._model)
            self.evaluation_problem = ""
        except InvalidInput as problem:
            self.evaluation, self.evaluation_problem = None, str(problem)

    async def _play(self, port: ReplayPort, sight: Sight) -> None:
        changes = changes_of(self._actor, sight.decisions, at=sight.at)
        try:
            self.live = await live_score(port, changes, sight.fleet.pools, at=sight.at)
            self.live_problem = "" if changes else "none of its changes was made in the last day"
        except AstraFlowError as problem:
            self.live_problem = str(problem)
