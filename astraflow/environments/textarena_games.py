"""Games for two players of TextArena (package `textarena`), played offline."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets.worlds.games import GAMES
from astraflow.environments import games
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.environments.two_player import PLAYERS, Game, GameTurn
from astraflow.runtime.config.base import Config
from astraflow.runtime.imports import needs_extra

_ACTION = re.compile(r"\[[^\[\]]{1,40}\]")
_MAX_BARE_CHARS = 40
"""Longest answer without brackets that is read as an action."""
_ENDINGS = {1: Ending.WON, 0: Ending.DONE, -1: Ending.LOST}
_modules_lock = Lock()


class TextArenaOptions(Config):
    """No settings: each prompt names its game."""


@games.register("textarena", options=TextArenaOptions)
class TextArenaFactory:
    """Games of TextArena for the prompts of the dataset `games`: ConnectFour, KuhnPoker, Nim, Othello, PigDice and
    TicTacToe. An action is the last text in square brackets of an answer, or a short answer without brackets. A player
    who breaks the rules is informed and may try once more; the second time in a row it loses."""

    def __init__(self, options: TextArenaOptions) -> None:
        del options
        self.limits = EnvironmentLimits()

    def make(self) -> Game:
        """Returns a new game."""
        return TextArenaGame()

    async def check(self) -> None:
        """Checks that the package is installed. Raises: InvalidInput."""
        _textarena()


class TextArenaGame:
    """One game. It runs in this process: a step takes less than a millisecond."""

    def __init__(self) -> None:
        self._env: Any = None
        self._rng = random.Random()
        self._modules: tuple[ModuleType, ...] = ()
        self._legal_actions: Callable[[Any], tuple[str, ...]] = _kuhn_actions
        self._turn: GameTurn | None = None

    async def begin(self, prompt: Prompt, seed: int) -> GameTurn:
        """Deals as the prompt says, so that the members of a group play the same cards; `seed` is not used.

        Raises: InvalidInput for a prompt without game and deal.
        """
        del seed
        game, deal = prompt.fields.get("game"), prompt.fields.get("deal")
        if not isinstance(game, str) or game not in GAMES or not isinstance(deal, str):
            raise InvalidInput(
                f"cannot begin a game: prompt {str(prompt.id)!r} has the game {game!r} and the deal {deal!r}; use the "
                "dataset kind 'games'",
                code="environment.wrong_prompt",
            )
        textarena = _textarena()
        self._rng.seed(f"textarena/{game}/{deal}")
        self._env = textarena.make(f"{game}-raw")
        self._modules = (import_module("textarena.core"), import_module(type(self._env).__module__))
        self._legal_actions = _LEGAL_ACTIONS[game.split("-")[0]]
        with self._own_random():
            self._env.reset(num_players=len(PLAYERS), seed=self._rng.getrandbits(32))
        self._turn = self._next_turn()
        return self._turn

    async def act(self, player: int, action: str) -> GameTurn:
        """Performs an action. Raises: InvalidInput before `begin`, or when it is not the player's turn."""
        if self._turn is None or (not self._turn.is_over and player != self._turn.player):
            expected = "the game has not begun" if self._turn is None else f"it is the turn of {self._turn.player}"
            raise InvalidInput(
                f"cannot perform the action of player {player}: {expected}; correct the workflow",
                code="environment.not_your_turn",
            )
        if not self._turn.is_over:
            with self._own_random():
                is_over, _ = self._env.step(_bracketed(action))
            self._turn = self._results(player) if is_over else self._next_turn()
        return self._turn

    async def close(self) -> None:
        """Forgets the game."""
        self._env = None

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Gives the modules of the game this game's random numbers. They use those of the process otherwise, which
        other games and threads draw too."""
        with _modules_lock:
            before = [(module, module.__dict__["random"]) for module in self._modules if "random" in module.__dict__]
            for module, _ in before:
                module.__dict__["random"] = self._rng
            try:
                yield
            finally:
                for module, original in before:
                    module.__dict__["random"] = original

    def _next_turn(self) -> GameTurn:
        player = self._env.state.current_player_id
        is_malformed = self._env.state.error_count > 0
        return GameTurn(player=player, observation=self._observation(player, is_malformed=is_malformed))

    def _observation(self, player: int, *, is_malformed: bool) -> Observation:
        """Returns what is new for the player: the messages of the game and its newest board. What the opponent wrote is
        left out, because it may hold its thoughts, or instructions to its opponent."""
        _, messages = self._env.get_observation()
        kinds = import_module("textarena").ObservationType
        texts = [(kind, str(text).strip()) for _, text, kind in messages if kind is not kinds.PLAYER_ACTION]
        boards = [text for kind, text in texts if kind is kinds.GAME_BOARD]
        player_texts = [text for kind, text in texts if kind is not kinds.GAME_BOARD]
        return Observation(
            text="\n".join([*player_texts, *boards[-1:]]),
            actions=self._legal_actions(self._env),
            is_malformed=is_malformed,
        )

    def _results(self, last: int) -> GameTurn:
        rewards, facts = self._env.close()
        results = tuple(
            Observation(
                text=str(facts[player].get("reason", "")),
                reward=float(rewards[player]),
                ending=Ending.MALFORMED if facts[player]["invalid_move"] else _ENDINGS[rewards[player]],
                metrics={"moves": float(facts[player]["turn_count"])},
            )
            for player in PLAYERS
        )
        return GameTurn(player=last, observation=results[last], results=results)


def _bracketed(answer: str) -> str:
    actions = _ACTION.findall(answer)
    if actions:
        return str(actions[-1])
    bare = answer.strip()
    return f"[{bare}]" if len(bare) <= _MAX_BARE_CHARS else ""


def _textarena() -> Any:
    with needs_extra("environments", to="play games of TextArena"):
        return import_module("textarena")


def _kuhn_actions(env: Any) -> tuple[str, ...]:
    return tuple(f"[{action}]" for action in env.state.game_state["current_legal_action_tree"])


def _cells(env: Any) -> tuple[str, ...]:
    cells = [cell for row in env.state.game_state["board"] for cell in row]
    return tuple(f"[{index}]" for index, cell in enumerate(cells) if not cell)


def _columns(env: Any) -> tuple[str, ...]:
    return tuple(f"[col {index}]" for index, cell in enumerate(env.state.game_state["board"][0]) if cell == ".")


def _nim_actions(env: Any) -> tuple[str, ...]:
    piles = env.state.game_state["piles"]
    return tuple(f"[{pile} {count}]" for pile, size in enumerate(piles) for count in range(1, size + 1))


def _othello_actions(env: Any) -> tuple[str, ...]:
    moves = env.state.game_state["valid_moves"]
    return tuple(f"[{row}, {column}]" for row, column in moves) or ("[skip]",)


def _pig_actions(_env: Any) -> tuple[str, ...]:
    return ("[roll]", "[hold]")


_LEGAL_ACTIONS: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "ConnectFour": _columns,
    "KuhnPoker": _kuhn_actions,
    "Nim": _nim_actions,
    "Othello": _othello_actions,
    "PigDice": _pig_actions,
    "TicTacToe": _cells,
}
