"""Messages between an environment or game that runs elsewhere and its client: requests, and results as JSON."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.environments.base import Observation
from astraflow.environments.two_player import PLAYERS, GameTurn
from astraflow.runtime.config.base import Config

Step = TypeVar("Step", Observation, GameTurn)

MAX_ACTION_CHARACTERS = 1_000_000
"""Longer actions are answered by the client itself."""
MAX_OBSERVATION_CHARACTERS = 1_000_000
"""Characters in all texts of an observation."""

EpisodeId = Annotated[str, Field(min_length=1, max_length=100)]


class BeginRequest(Config):
    """Begins an episode. Repeated with the same id, it returns the same observation."""

    episode: EpisodeId
    """Chosen by the client, unique."""
    prompt_id: str
    fields: dict[str, Any]
    """Fields of the prompt."""
    seed: int


class ActRequest(Config):
    """Performs an action. Repeated with the same turn, it returns the same observation."""

    episode: EpisodeId
    turn: int = Field(ge=1)
    """Number of the action in the episode, from 1."""
    action: str = Field(max_length=MAX_ACTION_CHARACTERS)
    player: int | None = None
    """Player of a game who acts; None in an environment."""


class CloseRequest(Config):
    """Closes an episode; an unknown one is ignored."""

    episode: EpisodeId


_OBSERVATION = TypeAdapter(Observation)
_TURN = TypeAdapter(GameTurn)


def encode_step(step: Observation | GameTurn) -> dict[str, Any]:
    """Returns an observation or the turn of a game as JSON values. Raises: RolloutFailed when it breaks a rule of the
    interface."""
    if isinstance(step, Observation):
        _check((step,))
        return dict(_OBSERVATION.dump_python(step, mode="json"))
    _check((step.observation, *step.results))
    return dict(_TURN.dump_python(step, mode="json"))


def decode_observation(value: object) -> Observation:
    """Returns the observation that an environment elsewhere sent. Raises: RolloutFailed for anything else."""
    observation = _decoded(_OBSERVATION, value)
    _check((observation,))
    return observation


def decode_turn(value: object) -> GameTurn:
    """Returns the turn that a game elsewhere sent. Raises: RolloutFailed for anything else."""
    turn = _decoded(_TURN, value)
    _check((turn.observation, *turn.results))
    if turn.player not in PLAYERS or len(turn.results) not in (0, len(PLAYERS)):
        raise _invalid(f"it names player {turn.player} and has {len(turn.results)} results")
    return turn


def _decoded(adapter: TypeAdapter[Step], value: object) -> Step:
    try:
        return adapter.validate_python(value)
    except ValidationError as problem:
        raise _invalid(f"{problem.error_count()} of its fields are invalid") from problem


def _check(observations: Sequence[Observation]) -> None:
    numbers = [
        number
        for observation in observations
        for number in (observation.reward, *observation.reward_terms.values(), *observation.metrics.values())
    ]
    if not all(map(math.isfinite, numbers)):
        raise _invalid("a reward, a reward term or a metric is not finite")
    length = sum(
        len(text)
        for observation in observations
        for text in (observation.text, observation.state, *observation.actions)
    )
    if length > MAX_OBSERVATION_CHARACTERS:
        raise _invalid(f"it has {length} characters, more than {MAX_OBSERVATION_CHARACTERS}")


def _invalid(cause: str) -> RolloutFailed:
    return RolloutFailed(
        f"cannot use the observation: {cause}; correct the environment",
        boundary=Boundary.ENVIRONMENT,
        code="environment.invalid_observation",
    )


def too_long(action: str) -> Observation | None:
    """Returns the answer to an action that is too long to be sent; None for others."""
    if len(action) <= MAX_ACTION_CHARACTERS:
        return None
    return Observation(text=f"Cannot read an action of {len(action)} characters.", is_malformed=True)
