"""Teacher of an on-policy distillation behind a server: the first rank asks for the logprobs of a batch's tokens."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self, TypeVar

import numpy as np

from astraflow.algorithms.config import AlgorithmConfig, TeacherEndpointConfig
from astraflow.client.openai_server import OpenAIClient, read_key
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array, Trajectory
from astraflow.runtime.clock import Clock, SystemClock

T = TypeVar("T")

_MAX_BACKOFF_S = 30.0


class TeacherEndpoint:
    """Client of the teacher's server. Its methods block, and run in a thread without an event loop."""

    def __init__(self, config: TeacherEndpointConfig, *, clock: Clock | None = None) -> None:
        """Raises: InvalidInput when the variable with the key is not set."""
        self._config = config
        self._key = read_key(config.key_variable)
        self._clock = clock or SystemClock()

    @classmethod
    def of(cls, algorithm: AlgorithmConfig, *, vocabulary: int) -> Self | None:
        """Returns the teacher's server of an algorithm, after a check of it; None without one. Raises: as `check`."""
        if algorithm.teacher_endpoint is None:
            return None
        endpoint = cls(algorithm.teacher_endpoint)
        endpoint.check(vocabulary=vocabulary)
        return endpoint

    def check(self, *, vocabulary: int) -> None:
        """Checks that the server answers, has the model, and scores the last token of the policy's vocabulary.

        A larger vocabulary, or another one of the same size, is not detected.
        Raises: InvalidInput, NotAuthenticated, RateLimited, Unavailable, CorruptData.
        """

        async def check(client: OpenAIClient) -> None:
            await client.check_model(self._config.model, limit_s=self._config.request_timeout_s)
            await self._scores(client, np.array([vocabulary - 1, vocabulary - 1], dtype=np.int32), 1)

        asyncio.run(self._with_client(check))

    def logprobs(self, trajectories: Mapping[int, Trajectory]) -> dict[int, Float32Array]:
        """Returns the teacher's logprobs of the tokens that the policy wrote, by the keys of `trajectories`.

        Raises: the errors of `check`, after the attempts of the configuration.
        """

        async def score(client: OpenAIClient) -> Sequence[Float32Array]:
            slots = asyncio.Semaphore(self._config.concurrency)

            async def score_one(trajectory: Trajectory) -> Float32Array:
                written = np.flatnonzero(trajectory.loss_mask())
                async with slots:
                    scores = await self._scores(client, trajectory.tokens, int(written[0]))
                own: Float32Array = scores[written - written[0]]
                return own

            return await asyncio.gather(*map(score_one, trajectories.values()))

        return dict(zip(trajectories, asyncio.run(self._with_client(score)), strict=True))

    async def _with_client(self, work: Callable[[OpenAIClient], Awaitable[T]]) -> T:
        """Returns the result of `work` with connections of its own, since each call runs an event loop of its own."""
        client = OpenAIClient(
            self._config.base_url,
            key=self._key,
            key_variable=self._config.key_variable,
            attempts=self._config.attempts,
            max_backoff_s=_MAX_BACKOFF_S,
            clock=self._clock,
        )
        try:
            return await work(client)
        finally:
            await client.close()

    async def _scores(self, client: OpenAIClient, tokens: Int32Array, scored_from: int) -> Float32Array:
        return await client.token_logprobs(
            self._config.model, tokens, scored_from, limit_s=self._config.request_timeout_s
        )
