"""Teacher of an on-policy distillation behind a server: the first rank asks for the scores of a batch's tokens."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self, TypeVar

import numpy as np

from astraflow.algorithms.checks import teacher_tokens
from astraflow.algorithms.config import AlgorithmConfig, TeacherEndpointConfig
from astraflow.client.openai_server import OpenAIClient, TopScores, read_key
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.rollouts.limits import MAX_LOGPROB
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger

T = TypeVar("T")

log = get_logger()

_MAX_BACKOFF_S = 30.0
_MAX_MASS = 1.001
"""Largest sum of the probabilities of a token's candidates, which servers compute in float32."""
_COMPARED_TEXTS = ("The answer is 42.", "def f(x):\n    return x ** 2\n", "\\frac{1}{3} ≈ 0.333, naïve 数学 🙂")
"""Texts that tokenizers of different models divide differently."""


class TeacherEndpoint:
    """Client of the teacher's server. Its methods block, and run in a thread without an event loop."""

    def __init__(self, config: TeacherEndpointConfig, *, vocabulary: int, clock: Clock | None = None) -> None:
        """vocabulary: of the policy. Raises: InvalidInput when the variable with the key is not set."""
        self._config = config
        self._vocabulary = vocabulary
        self._key = read_key(config.key_variable)
        self._clock = clock or SystemClock()

    @classmethod
    def all_of(cls, algorithm: AlgorithmConfig, *, vocabulary: int, tokenizer: ChatTokenizer) -> dict[str, Self]:
        """Returns the servers of an algorithm's teachers by name, after a check of each. Raises: as `check`."""
        servers = {
            name: cls(teacher.endpoint, vocabulary=vocabulary)
            for name, teacher in algorithm.teachers.items()
            if teacher.endpoint is not None
        }
        for server in servers.values():
            server.check(tokenizer, top=teacher_tokens(algorithm))
        return servers

    def check(self, tokenizer: ChatTokenizer, *, top: int) -> None:
        """Checks that the server answers, has the model, scores the last token of the policy's vocabulary, and divides
        some texts into the policy's tokens. A server that does not tokenize texts is not compared, which is logged.

        top: most likely tokens that are asked for; 0: none.
        Raises: InvalidInput, NotAuthenticated, RateLimited, Unavailable, CorruptData.
        """

        async def check(client: OpenAIClient) -> None:
            limit_s = self._config.request_timeout_s
            await client.check_model(self._config.model, limit_s=limit_s)
            await self._scores(client, np.full(2, self._vocabulary - 1, dtype=np.int32), 1, top)
            for text in _COMPARED_TEXTS:
                own, theirs = (
                    tokenizer.encode(text).tolist(),
                    await client.tokenize(self._config.model, text, limit_s=limit_s),
                )
                if theirs is None:
                    log.warning("teacher_tokenizer_unknown", server=self._config.base_url)
                    return
                if own != theirs:
                    raise self._other_tokenizer(text, own, theirs)

        asyncio.run(self._with_client(check))

    def scores(self, trajectories: Mapping[int, Trajectory], *, top: int) -> dict[int, TopScores]:
        """Returns the teacher's scores of the tokens that the policy wrote, by the keys of `trajectories`.

        top: as for `check`. Raises: the errors of `check`, after the attempts of the configuration.
        """

        async def score(client: OpenAIClient) -> Sequence[TopScores]:
            slots = asyncio.Semaphore(self._config.concurrency)

            async def score_one(trajectory: Trajectory) -> TopScores:
                written = np.flatnonzero(trajectory.loss_mask())
                async with slots:
                    scores = await self._scores(client, trajectory.tokens, int(written[0]), top)
                return scores.at(written - written[0])

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

    async def _scores(self, client: OpenAIClient, tokens: Int32Array, scored_from: int, top: int) -> TopScores:
        limit_s, model = self._config.request_timeout_s, self._config.model
        if not top:
            logprobs = await client.token_logprobs(model, tokens, scored_from, limit_s=limit_s)
            return TopScores.of(logprobs.tolist(), [{}] * len(logprobs), 0)
        scores = await client.top_logprobs(model, tokens, scored_from, top, limit_s=limit_s)
        if defect := _defect(scores, self._vocabulary):
            raise CorruptData(
                f"cannot use the scores of the teacher at {self._config.base_url!r}: {defect}; use a server with the "
                "policy's vocabulary that returns the logprobs of whole distributions",
                code="trainer.teacher_scores",
            )
        return scores

    def _other_tokenizer(self, text: str, own: Sequence[int], theirs: Sequence[int]) -> InvalidInput:
        return InvalidInput(
            f"cannot distil from {self._config.model!r} at {self._config.base_url!r}: {text!r} is {own} in the "
            f"policy's tokenizer, {theirs} in the teacher's; use a teacher with the policy's tokenizer",
            code="trainer.teacher_tokenizer",
        )


def _defect(scores: TopScores, vocabulary: int) -> str | None:
    """Returns what is wrong with the scores, as a sentence; None: nothing."""
    values = scores.top_logprobs
    if np.isnan(scores.logprobs).any() or np.isnan(values).any():
        return "a logprob is not a number"
    if max(scores.logprobs.max(initial=-1), values.max(initial=-1)) > MAX_LOGPROB:
        return "a logprob is above 0"
    if scores.top_tokens.max(initial=0) >= vocabulary or scores.top_tokens.min(initial=0) < -1:
        return f"a token is not in the vocabulary of {vocabulary}"
    if np.exp(values).sum(-1).max(initial=0) > _MAX_MASS:
        return "the probabilities of a token's candidates sum to more than 1"
    return None
