"""Subjects for the engine checks: a plugin with a small model whose weights are made here, or a running server."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from astraflow.conformance.engines import Subject
from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.contract.weights import Dtype, Probe
from astraflow.models import models
from astraflow.raas.engines import engines
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.weights.tensors import VerifiedWeights, build_layout

POLICY = PolicyId("checked")
SMALL: Mapping[str, Any] = {
    "kind": "tiny",
    "hidden_size": 64,
    "heads": 2,
    "key_value_heads": 1,
    "max_context_tokens": 2048,
}
"""Model of the checks: 32 elements per head, the fewest that vLLM supports on a CPU."""
TOKENS, SERVER_TOKENS = 400, 1500
"""Tokens of a request; a server generates a small model fast, and must not finish before the checks meet it."""
SCRIPTED: Mapping[str, Any] = {"kind": "scripted"}
_SEEDS = 3


def plugin_subject(engine: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> Subject:
    """Returns a subject for an engine spec, on a small model by default. Raises: InvalidInput."""
    is_simulated = engine["kind"] == "scripted"
    spec = model or (SCRIPTED if is_simulated else SMALL)
    tokenizer = models.build(spec).tokenizer()
    prompt = tokenizer.encode_chat([{"role": "user", "content": "say right"}])
    built = engines.build(engine, spec)
    if built.is_simulated:
        sampling = Sampling(max_new_tokens=200, stop_tokens=tokenizer.stop_tokens)
        return Subject(engine=built, weights=_without_values, prompt=prompt, sampling=sampling)
    sampling = Sampling(max_new_tokens=SERVER_TOKENS if isinstance(built, ServerEngine) else TOKENS)
    return Subject(engine=built, weights=_versions(spec), prompt=prompt, sampling=sampling)


async def server_subject(engine: Mapping[str, Any], *, prompt: Int32Array, max_new_tokens: int) -> Subject:
    """Returns a subject for a server that another party refreshes.

    Its weights are unknown here, so the probe is its own score: the checks show that it is consistent, and the probe of
    a run shows whether its weights are those of the trainer. Raises: InvalidInput, Unavailable, NotAuthenticated.
    """
    built = engines.build(engine, {})
    try:
        await built.start()
        text = np.resize(prompt, 32).astype(np.int32)
        scores = await built.score(text, 1)
    except BaseException:
        await built.close()
        raise
    if not len(scores):
        raise Unavailable("cannot check the server: it returned no scores; check its log", code="engine.no_scores")
    probe = Probe(
        tokens=text.astype("<i4").tobytes(),
        lengths=(len(text),),
        scored_from=(1,),
        logprobs=scores.astype("<f4").tobytes(),
    )
    return Subject(
        engine=built,
        weights=lambda version: _version(version, probe),
        prompt=prompt,
        sampling=Sampling(max_new_tokens=max_new_tokens),
        can_load=False,
    )


def _versions(spec: Mapping[str, Any]) -> Callable[[int], VerifiedWeights]:
    """Returns versions of a model: random weights, another seed for each, with a probe of the model itself."""

    @cache
    def weights(version: int) -> VerifiedWeights:
        from astraflow.raas.engines.model_weights import weights_of

        seeded = {**spec, "seed": version % _SEEDS} if spec["kind"] == "tiny" else spec
        model = models.build(seeded).architecture().eval()
        return weights_of(model, policy=POLICY, version=Version(version), dtype=Dtype.BFLOAT16)

    return weights


def _without_values(version: int) -> VerifiedWeights:
    return _version(version, None)


def _version(version: int, probe: Probe | None) -> VerifiedWeights:
    tensors = {"weight": (Dtype.BFLOAT16, (2,), np.zeros(2, dtype="<u2"))}
    manifest, buffer = build_layout(tensors, policy=POLICY, version=Version(version), probe=probe)
    return VerifiedWeights(manifest=manifest, buffer=buffer)
