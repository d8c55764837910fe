"""Environment and game that misbehave on request, for the adapters."""

import asyncio
import os
import signal
import sys
import time

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments import environments, games
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.environments.two_player import GameTurn
from astraflow.runtime.config.base import Config


class FaultyOptions(Config):
    """When it fails."""

    refuses_check: bool = False
    dies_at_start: bool = False


@environments.register("faulty", options=FaultyOptions)
class FaultyFactory:
    """Counts actions; `win` ends. Other actions are faults by name."""

    def __init__(self, options: FaultyOptions) -> None:
        self._options = options

    @property
    def limits(self) -> EnvironmentLimits:
        return EnvironmentLimits()

    def make(self) -> "FaultyEnvironment":
        return FaultyEnvironment()

    async def check(self) -> None:
        if self._options.dies_at_start:
            sys.stderr.write("cannot find the thing\n")
            sys.stderr.flush()
            os._exit(7)
        if self._options.refuses_check:
            raise InvalidInput("cannot use it: it refuses; do not", code="faulty.refused")


class FaultyEnvironment:
    """One episode."""

    def __init__(self) -> None:
        self._actions = 0

    async def begin(self, prompt: Prompt, _seed: int) -> Observation:
        if prompt.fields.get("refuse"):
            raise InvalidInput("cannot begin: refused; use another", code="faulty.prompt")
        return Observation(text=f"pid {os.getpid()}")

    async def act(self, action: str) -> Observation:
        self._actions += 1
        if action == "hang":
            time.sleep(1000)  # noqa: ASYNC251 (a fault)
        if action == "wait":
            await asyncio.sleep(1)
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "raise":
            raise RuntimeError("broken inside")
        if action == "print":
            sys.stdout.write("noise on standard output\n")
            sys.stdout.flush()
            os.write(1, b"x" * 1000 + b"\n")
        if action == "flood":
            return Observation(text="x" * 10_000_000)
        if action == "nan":
            return Observation(text="", reward=float("nan"))
        won = action == "win"
        return Observation(text=f"{self._actions}", reward=float(won), ending=Ending.WON if won else None)

    async def close(self) -> None: ...


@games.register("counting", options=FaultyOptions)
class CountingFactory(FaultyFactory):
    """Games in which the players count to three in turns; other actions are faults by name."""

    def make(self) -> "CountingGame":  # type: ignore[override]  # a game is no environment
        return CountingGame()


class CountingGame:
    """One game, which player 0 wins."""

    def __init__(self) -> None:
        self._faults = FaultyEnvironment()
        self._player = 0

    async def begin(self, prompt: Prompt, seed: int) -> GameTurn:
        return GameTurn(player=0, observation=Observation(text="Count to three."))

    async def act(self, player: int, action: str) -> GameTurn:
        if player != self._player:
            raise InvalidInput("cannot act: it is the other player's turn; wait", code="environment.not_your_turn")
        observation = await self._faults.act(action)
        if action == "stranger":
            return GameTurn(player=7, observation=observation)
        if observation.text != "3":
            self._player = 1 - player
            return GameTurn(player=self._player, observation=observation)
        won = Observation(text="", reward=1.0, ending=Ending.WON)
        lost = Observation(text="", reward=-1.0, ending=Ending.LOST)
        return GameTurn(player=player, observation=won, results=(won, lost))

    async def close(self) -> None: ...
