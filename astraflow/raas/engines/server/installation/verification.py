"""Check of an installed engine: a server with a tiny model generates and scores, and both agree."""

import asyncio
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from astraflow.contract.errors import AstraFlowError, Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.raas.engines.base import Engine
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.engines.server.environments import Environment
from astraflow.raas.engines.server.options import ServerOptions
from astraflow.raas.engines.server.sglang import SglangDialect
from astraflow.raas.engines.server.vllm import VllmDialect
from astraflow.runtime.service import flattened_errors
from astraflow.weights.tensors import VerifiedWeights, build_layout

MODEL: Mapping[str, Any] = {
    "kind": "tiny",
    "hidden_size": 128,  # heads of 64, the smallest size that the kernels of both programs support on every device
    "heads": 2,
    "key_value_heads": 1,
    "intermediate_size": 128,
}
"""Model of the check: random weights, less than a megabyte."""

_PROMPT = np.array([5, 6, 7, 8], dtype=np.int32)
_NEW_TOKENS = 8
_DIALECTS: Mapping[str, type[SglangDialect] | type[VllmDialect]] = {"sglang": SglangDialect, "vllm": VllmDialect}


def verify(environment: Environment) -> str:
    """Starts a server from an environment, generates and scores; returns what it did, with the time.

    Raises: Unavailable when the server does not start or answers wrongly.
    """
    return asyncio.run(_verify(environment))


async def check_answers(engine: Engine) -> float:
    """Loads weights into a started engine, generates 8 tokens and scores them; returns the largest difference in nats.

    Raises: Unavailable when tokens are missing, or generation and score disagree by more than the engine's tolerance.
    """
    await engine.load(await asyncio.to_thread(_weights))
    generation = await engine.generate("check", _PROMPT, Sampling(max_new_tokens=_NEW_TOKENS))
    if len(generation.tokens) != _NEW_TOKENS:
        raise Unavailable(
            f"cannot use the engine: it generated {len(generation.tokens)} tokens instead of {_NEW_TOKENS}; install a "
            "tested release",
            code="engine.check_failed",
        )
    scores = await engine.score(np.concatenate([_PROMPT, generation.tokens]), len(_PROMPT))
    mismatch = float(np.abs(scores - generation.logprobs).max())
    tolerance = engine.logprob_tolerance
    if not mismatch <= min(tolerance.max, 2 * tolerance.p99):  # also refuses NaN
        raise Unavailable(
            f"cannot use the engine: the logprobs of generated and of scored tokens differ by {mismatch:.3g} nats; "
            "install a tested release",
            code="engine.check_failed",
        )
    return mismatch


async def _verify(environment: Environment) -> str:
    times = [time.perf_counter()]
    engine = ServerEngine(
        _DIALECTS[environment.kind](), ServerOptions(context_tokens=128), MODEL, environment=environment
    )
    try:
        await engine.start()
        times.append(time.perf_counter())
        mismatch = await check_answers(engine)
        times.append(time.perf_counter())
    except* AstraFlowError as problems:
        raise flattened_errors(problems)[0] from None
    finally:
        await engine.close()
    start_s, answer_s = (end - begin for begin, end in pairwise(times))
    return (
        f"the server started in {start_s:.0f} s and answered in {answer_s:.1f} s; generated and scored logprobs agree "
        f"within {mismatch:.1g} nats"
    )


def _weights() -> VerifiedWeights:
    """Returns random weights of the model in bfloat16, as a node receives them."""
    from astraflow.models.published import published_tensors

    tensors = published_tensors(models.build(MODEL).architecture(), Dtype.BFLOAT16)
    manifest, buffer = build_layout(tensors, policy=PolicyId("check"), version=Version(0))
    return VerifiedWeights(manifest=manifest, buffer=buffer)
