"""Check that requests in flight were computed again on the new weights after a swap.

An engine that keeps the key-value cache of the old weights returns logprobs that neither version computes: the tokens
after the swap depend on both versions. The probe after a load cannot detect this, because it is a new request. This
check scores a real generation again, as a new request, and compares the logprobs.
"""

import asyncio
from dataclasses import dataclass

import numpy as np

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.base import Engine
from astraflow.raas.engines.logprob_mismatch import LogprobMismatch, compare_logprobs

TIMEOUT_S = 60.0

MIN_ROUNDED_TOKENS = 64
"""Minimum number of compared tokens in bfloat16 and float16, where the mean over fewer tokens is too noisy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprefillSample:
    """Tokens of a request, and the logprobs of the tokens after its last weight swap."""

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

    Only logprobs at temperature 1 and of the full distribution can be compared, because a score has them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sample: ReprefillSample | None = None
        self._has_sample = asyncio.Event()
        self._checked: Version | None = None

    def offer(self, prompt: Int32Array, sampling: Sampling, generation: Generation) -> None:
        """Keeps the generation as the sample of the current version if that has no sample and was not checked."""
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
        """Waits for the next sample and returns it."""
        while self._sample is None:
            await self._has_sample.wait()
            self._has_sample.clear()
        sample, self._sample = self._sample, None
        return sample

    async def measure(self, sample: ReprefillSample) -> LogprobMismatch | None:
        """Scores a sample and returns the mismatch; None when the engine has changed the version meanwhile.

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
