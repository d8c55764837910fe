"""Check that requests in flight were computed again on the new weights after a swap.

An engine that goes on with the key-value cache of the old weights returns logprobs that no version has: the tokens
after the swap depend on both. The probe after a load cannot see it, because it is a new request. This check scores a
real generation again, as a new request, and compares the logprobs.
"""

import asyncio
from dataclasses import dataclass

import numpy as np

from astraflow.contract.generation import Generation, Sampling
from astraflow.contract.ids import Version
from astraflow.contract.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.base import Engine
from astraflow.raas.logprob_gap import LogprobGap, compare_logprobs

TIMEOUT_S = 60.0

MIN_ROUNDED_TOKENS = 64
"""Fewest tokens after a swap that are compared in bfloat16 and float16, where the mean of a few is chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprefillSample:
    """Tokens of a request and the logprobs of those after its last swap."""

    version: Version
    """Version that wrote the scored tokens."""
    tokens: Int32Array
    """Prompt and generation."""
    scored_from: int
    """Position of the first token after the swap."""
    logprobs: Float32Array
    """Logprobs that the engine returned for `tokens[scored_from:]`."""


class ReprefillCheck:
    """Chooses at most one generation per version and scores it again.

    Only the logprobs of an unscaled, full distribution can be compared: a score is at temperature 1.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sample: ReprefillSample | None = None
        self._has_sample = asyncio.Event()
        self._checked: Version | None = None

    def offer(self, prompt: Int32Array, sampling: Sampling, generation: Generation) -> None:
        """Takes the generation as the sample of the version in service, unless that has one."""
        version, spans = self._engine.version, generation.spans
        if len(spans) < 2 or spans[-1].version != version or version == self._checked or self._engine.is_simulated:
            return
        if self._sample is not None and self._sample.version == version:
            return
        length = spans[-1].length
        if sampling.temperature != 1 or not sampling.is_full_distribution or length < self._min_tokens:
            return
        tokens = np.concatenate([prompt, generation.tokens]).astype(np.int32, copy=False)
        self._sample = ReprefillSample(
            version=spans[-1].version,
            tokens=tokens,
            scored_from=len(tokens) - length,
            logprobs=generation.logprobs[-length:],
        )
        self._has_sample.set()

    async def next_sample(self) -> ReprefillSample:
        """Returns the next sample."""
        while self._sample is None:
            await self._has_sample.wait()
            self._has_sample.clear()
        sample, self._sample = self._sample, None
        return sample

    async def measure(self, sample: ReprefillSample) -> LogprobGap | None:
        """Returns the gap; None when the version in service changed meanwhile.

        Raises: TimeoutError, and any error of the engine.
        """
        if self._engine.version != sample.version:
            return None
        async with asyncio.timeout(TIMEOUT_S):
            scores = await self._engine.score(sample.tokens, sample.scored_from)
        if self._engine.version != sample.version:
            return None
        self._checked = sample.version
        return compare_logprobs(scores, sample.logprobs)

    @property
    def _min_tokens(self) -> int:
        return 1 if np.isfinite(self._engine.logprob_tolerance.max) else MIN_ROUNDED_TOKENS
