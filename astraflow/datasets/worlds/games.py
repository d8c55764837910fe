"""Games for two players: which game, and which deal of its cards or dice. Their rules are in environments."""

from typing import Annotated

from pydantic import Field, field_validator

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, GeneratedDataset
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

GAMES = (
    "ConnectFour-v0",
    "ConnectFour-v0-large",
    "KuhnPoker-v0",
    "KuhnPoker-v0-short",
    "KuhnPoker-v0-medium",
    "Nim-v0",
    "Nim-v0-medium",
    "Nim-v0-large",
    "Othello-v0-tiny",
    "Othello-v0-small",
    "Othello-v0",
    "PigDice-v0",
    "PigDice-v0-short",
    "TicTacToe-v0",
)
"""Games, named as TextArena does: those that need neither a network nor a jury of language models, and in which each
player sees what its opponent did but not what it wrote. `KuhnPoker-v0` has 3 rounds, `-short` 5 and `-medium` 9."""


class GamesOptions(Config):
    """Games to play."""

    size: int = Field(default=1000, ge=1)
    """Number of prompts. The games take turns, each time with another deal."""
    games: Annotated[tuple[str, ...], SettableBy.AGENT] = ("TicTacToe-v0", "Nim-v0", "KuhnPoker-v0")
    """Games, such as `TicTacToe-v0`."""

    @field_validator("games")
    @classmethod
    def _check_games(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("name at least one game")
        if unknown := set(names) - set(GAMES):
            raise ValueError(f"unknown games {', '.join(sorted(unknown))}; known: {', '.join(GAMES)}")
        return names


@datasets.register("games", options=GamesOptions)
class Games(GeneratedDataset):
    """Deals of games for two players.

    Fields: question (name of the game; the game itself tells its rules), answer (empty: the game decides), game,
    deal (seed of cards and dice, the same for all members of a group)."""

    def __init__(self, options: GamesOptions, seed: int) -> None:
        super().__init__(options.size)
        self._options = options
        self._seed = seed

    def _prompt(self, index: int) -> Prompt:
        game = self._options.games[index % len(self._options.games)]
        deal = f"{self._seed}/{index}"
        fields: dict[str, Json] = {QUESTION: f"Play {game}.", ANSWER: "", "game": game, "deal": deal}
        return Prompt(id=PromptId(f"games:{game}:{index}"), fields=fields)
