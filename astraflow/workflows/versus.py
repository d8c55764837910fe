"""Workflow of two players in one game: self-play, or two policies against each other."""

import asyncio
import math
from collections.abc import Awaitable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.environments import games
from astraflow.environments.base import Observation
from astraflow.environments.two_player import PLAYERS, Game, GameTurn
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.logs import get_logger
from astraflow.runtime.plugins import start_managed
from astraflow.runtime.tracing import span
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClients, RewardScorer, episode_seed
from astraflow.workflows.components.conversation import Conversation, ConversationOptions
from astraflow.workflows.components.roles import Team

log = get_logger()

ROLES = ("player_1", "player_2")
"""Roles of the players, in the order of `PLAYERS`."""
CLOSE_S = 10.0
"""Time limit for closing a game. Seconds."""


class VersusOptions(ConversationOptions):
    """Game and policies. The limits of a conversation hold for each player; a player who reaches one loses."""

    game: Annotated[dict[str, Any], games]
    """Game spec: `kind` and its options."""
    player_1: Annotated[str, SettableBy.AGENT] = "player"
    """Policy of the first player."""
    player_2: Annotated[str, SettableBy.AGENT] = "player"
    """Policy of the second player; the same for self-play."""
    max_repeats: int = Field(default=0, ge=0)
    """Equal turns in a row with which a player loses; 0: no limit."""


@dataclass(slots=True, kw_only=True)
class _Player:
    role: str
    policy: PolicyId
    conversation: Conversation | None = None
    """None until its first turn."""
    malformed: int = 0


@workflows.register("versus", options=VersusOptions)
class Versus(Team):
    """A game of `player_1` and `player_2`, each with one trajectory of all its turns and the game's result as reward.

    A player who exceeds a limit of its conversation ends the game: it gets -1 and the other one 1. A player who had no
    turn has no trajectory. The flow's reward is not used. The game decides by the seed which policy begins.
    """

    def __init__(self, options: VersusOptions) -> None:
        super().__init__(dict(zip(ROLES, (options.player_1, options.player_2), strict=True)))
        self._options = options
        self._factory = games.build(options.game)
        self._resources = AsyncExitStack()
        concurrency = self._factory.limits.concurrency
        self._slots = asyncio.Semaphore(concurrency) if concurrency else None

    async def start(self) -> None:
        """Starts the games and checks that they work here. Raises: InvalidInput, Unavailable."""
        await start_managed((self._factory,), self._resources)
        await self._factory.check()

    async def close(self) -> None:
        """Closes the games."""
        await self._resources.aclose()

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.conversation_bounds(conversations=len(ROLES))

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Plays one game."""
        limits = self._factory.limits
        players = [_Player(role=role, policy=policy) for role, policy in self.roles.items()]
        async with self._slots or nullcontext():
            game = self._factory.make()
            try:
                turn = await _called("begin", limits.begin_s, game.begin(task.prompt, episode_seed(task)))
                results = await self._play(game, turn, players, policies)
            finally:
                await _close(game)
        return tuple(
            player.conversation.builder.build(
                result.reward,
                role=player.role,
                metrics={**result.metrics, "turns": float(player.conversation.turns)},
                ending=result.ending,
            )
            for player, result in zip(players, results, strict=True)
            if player.conversation is not None
        )

    async def _play(
        self, game: Game, turn: GameTurn, players: list[_Player], policies: PolicyClients
    ) -> tuple[Observation, ...]:
        """Plays until the game is over or a player exceeds a limit; returns the results of the players."""
        while not turn.is_over:
            number, player = turn.player, players[turn.player]
            limit = player.conversation.ending(player.malformed) if player.conversation else None
            conversation = self._shown(player, turn.observation.text, policies) if limit is None else None
            if conversation is None:
                return _forfeit(number, limit or Ending.CONTEXT)
            answer = await conversation.answer()
            turn = await _called("act", self._factory.limits.act_s, game.act(number, answer.text))
            player.malformed += turn.observation.is_malformed and turn.player == number
        return turn.results

    def _shown(self, player: _Player, text: str, policies: PolicyClients) -> Conversation | None:
        """Returns the conversation of a player with a further text; None when there is no room for it."""
        message = {"role": "user", "content": text}
        if player.conversation is None:
            client = policies[player.policy]
            player.conversation = Conversation(player.policy, client, self._options, [message])
            return player.conversation
        return player.conversation if player.conversation.append([message], speaker="game") else None


def _forfeit(loser: int, ending: Ending) -> tuple[Observation, ...]:
    lost, won = Observation(text="", reward=-1.0, ending=ending), Observation(text="", reward=1.0, ending=Ending.WON)
    return tuple(lost if player == loser else won for player in PLAYERS)


async def _called(call: str, timeout_s: float, calling: Awaitable[GameTurn]) -> GameTurn:
    """Awaits a turn and checks its numbers. Raises: InvalidInput; RolloutFailed at the boundary `environment`."""
    try:
        with span(f"rl.game.{call}"):
            async with asyncio.timeout(timeout_s):
                turn = await calling
    except (RolloutFailed, InvalidInput):
        raise
    except Exception as problem:  # a game may raise anything
        raise RolloutFailed(
            f"cannot continue the game: {type(problem).__name__} in {call!r}: {problem}; look for its own log, or "
            "raise its limits",
            boundary=Boundary.ENVIRONMENT,
            code="rollout.game_failed",
        ) from problem
    numbers = [number for result in turn.results for number in (result.reward, *result.metrics.values())]
    if not all(map(math.isfinite, numbers)):
        raise RolloutFailed(
            "cannot use the result of the game: a reward or a metric is not finite; return finite numbers",
            boundary=Boundary.ENVIRONMENT,
            code="rollout.invalid_game_result",
        )
    return turn


async def _close(game: Game) -> None:
    """Closes the game within the time limit; logs a failure."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await game.close()
    except Exception:  # a game may raise anything; the episode is over
        log.exception("game_not_closed", game=type(game).__name__)
