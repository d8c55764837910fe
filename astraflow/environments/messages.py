"""Messages between an environment that runs elsewhere and its client: requests, and observations as JSON."""

import math
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from astraflow.contract.failures import Boundary, RolloutFailed
from astraflow.environments.base import Observation
from astraflow.runtime.config import Config

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


class CloseRequest(Config):
    """Closes an episode; an unknown one is ignored."""

    episode: EpisodeId


_OBSERVATION = TypeAdapter(Observation)


def encode_observation(observation: Observation) -> dict[str, Any]:
    """Returns the observation as JSON values. Raises: RolloutFailed when it breaks a rule of the interface."""
    _check(observation)
    return dict(_OBSERVATION.dump_python(observation, mode="json"))


def decode_observation(value: object) -> Observation:
    """Returns the observation that an environment elsewhere sent. Raises: RolloutFailed for anything else."""
    try:
        observation = _OBSERVATION.validate_python(value)
    except ValidationError as problem:
        raise RolloutFailed(
            f"cannot use the observation: {problem.error_count()} of its fields are invalid; correct the environment",
            boundary=Boundary.ENVIRONMENT,
            code="environment.invalid_observation",
        ) from problem
    _check(observation)
    return observation


def _check(observation: Observation) -> None:
    numbers = (observation.reward, *observation.reward_terms.values(), *observation.metrics.values())
    length = len(observation.text) + len(observation.state) + sum(map(len, observation.actions))
    cause = ""
    if not all(map(math.isfinite, numbers)):
        cause = "a reward, a reward term or a metric is not finite"
    elif length > MAX_OBSERVATION_CHARACTERS:
        cause = f"it has {length} characters, more than {MAX_OBSERVATION_CHARACTERS}"
    if cause:
        raise RolloutFailed(
            f"cannot use the observation: {cause}; correct the environment",
            boundary=Boundary.ENVIRONMENT,
            code="environment.invalid_observation",
        )


def too_long(action: str) -> Observation | None:
    """Returns the answer to an action that is too long to be sent; None for others."""
    if len(action) <= MAX_ACTION_CHARACTERS:
        return None
    return Observation(text=f"Cannot read an action of {len(action)} characters.", is_malformed=True)
