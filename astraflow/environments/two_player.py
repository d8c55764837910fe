"""Interface of games for two players, such as a policy and an earlier version of itself."""

from dataclasses import dataclass
from typing import Protocol

from astraflow.contract.rollouts.tasks import Prompt
from astraflow.environments.base import EnvironmentLimits, Observation

PLAYERS = (0, 1)
"""Numbers of the players. Player 0 does not always begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameTurn:
    """Whose turn it is and what that player sees; or the results, when the game is over."""

    player: int
    """Player who acts next, in `PLAYERS`; the same as before after an action that could not be read or is against the
    rules. At the end, the player who acted last."""
    observation: Observation
    """News for the player since its last observation; the first observation of a player contains the rules. `ending` is
    None and `reward` 0 until the game is over; then they are the player's result."""
    results: tuple[Observation, ...] = ()
    """Last observation of each player, in the order of `PLAYERS`, when the game is over: `reward` of the whole game (1
    for the winner, 0 for a draw, -1 for the loser), `ending` (`WON`, `LOST`, and `DONE` for a draw; `MALFORMED` for a
    player who lost by breaking the rules), `metrics`."""

    @property
    def is_over(self) -> bool:
        """Returns whether the game is over."""
        return bool(self.results)


class Game(Protocol):
    """Game of one episode, used once.

    It is a deterministic function of prompt, seed and actions, as an `Environment` is.
    """

    async def begin(self, prompt: Prompt, seed: int) -> GameTurn:
        """Starts the game. Raises: InvalidInput for a prompt of another kind; RolloutFailed at the boundary
        `environment` when the game does not work."""

    async def act(self, player: int, action: str) -> GameTurn:
        """Performs an action of the player whose turn it is. A wrong action is answered with a turn and never raises;
        after the end, the last turn is repeated.

        Raises: InvalidInput when it is not the player's turn, which is a defect of the workflow; RolloutFailed at the
        boundary `environment` when the game does not work.
        """

    async def close(self) -> None:
        """Releases the episode's resources. Idempotent."""


class GameFactory(Protocol):
    """Creates games. Built by `games.build(spec)` once for each flow on every node; a `ManagedPlugin` when it owns
    processes or connections.

    A plugin is a class in a module that registers itself; list the module under the entry point group
    `astraflow.games`:

        @games.register("dice", options=DiceOptions)
        class DiceFactory:
            def __init__(self, options: DiceOptions) -> None: ...
    """

    @property
    def limits(self) -> EnvironmentLimits:
        """Limits of its games."""

    def make(self) -> Game:
        """Returns a new game; does no work."""

    async def check(self) -> None:
        """Checks that games work on this machine. Raises: InvalidInput or Unavailable with the remedy."""
