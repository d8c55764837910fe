"""Engines that serve for the time of a block, and waiting for what happens in their processes."""

import asyncio
import string
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.base import Engine
from astraflow.weights.tensors import VerifiedWeights

Build = Callable[[], Engine]
Weights = Callable[[int], VerifiedWeights]

GIVE_UP_S = 40.0


@asynccontextmanager
async def serving(build: Build, weights: VerifiedWeights) -> AsyncIterator[Engine]:
    """Yields a fresh engine that serves these weights; closes it at the end."""
    engine = build()
    try:
        await engine.start()
        await engine.load(weights)
        yield engine
    finally:
        await engine.close()


async def within(work: Any) -> Any:
    """Returns the result of `work`, with a timeout."""
    return await asyncio.wait_for(work, GIVE_UP_S)


async def until(holds: Callable[[], bool]) -> None:
    """Waits until `holds()` is true. Raises: TimeoutError."""
    async with asyncio.timeout(GIVE_UP_S):
        while not holds():  # noqa: ASYNC110 (what is observed runs in other processes)
            await asyncio.sleep(0.02)


def text_of(tokens: Int32Array) -> str:
    """Returns the text of a model of kind `tiny`, without special tokens."""
    first = 4
    return "".join(string.printable[token - first] for token in tokens if first <= token < first + 100)


def check(generation: Generation, sampling: Sampling) -> None:
    """Checks the invariants of every generation."""
    assert generation.tokens.dtype == np.int32
    assert generation.logprobs.dtype == np.float32
    assert len(generation.tokens) <= sampling.max_new_tokens
    assert np.isfinite(generation.logprobs).all()
    assert (generation.logprobs <= 0).all()
    assert all(span.length > 0 for span in generation.spans)
    assert [span.version for span in generation.spans] == sorted({Version(span.version) for span in generation.spans})
