"""Environment for openenv that knows nothing of AstraFlow: write letters in reverse order, round after round."""

from random import Random
from typing import Any
from uuid import uuid4

from openenv.core.env_server import Action, Environment, Observation, State, create_app

LETTERS = "abcdefgh"
ROUNDS = 2


class Answer(Action):
    """What the player writes."""

    text: str


class Letters(Observation):
    """Letters to reverse."""

    text: str


class ReverseRounds(Environment[Answer, Letters, State]):
    """Gives an equal share of the reward 1 for each right answer."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._random = Random()
        self._word = ""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Letters:
        """Begins with the word that the seed gives."""
        self._random = Random(seed)
        self._state = State(episode_id=episode_id or str(uuid4()))
        return self._shown(reward=None)

    def step(self, action: Answer, timeout_s: float | None = None, **_: Any) -> Letters:
        """Takes an answer."""
        self._state.step_count += 1
        return self._shown(reward=float(action.text.strip() == self._word[::-1]) / ROUNDS)

    @property
    def state(self) -> State:
        """Counts the rounds."""
        return self._state

    def _shown(self, *, reward: float | None) -> Letters:
        self._word = "".join(self._random.choices(LETTERS, k=3))
        return Letters(text=f"rev {self._word}=", reward=reward, done=self._state.step_count >= ROUNDS)


app = create_app(ReverseRounds, Answer, Letters, env_name="reverse_rounds", max_concurrent_envs=64)
