"""Real engine servers with a small model, and its versions."""

from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.models.causal import named_weights
from astraflow.raas.engines import engines
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.weights.adapters import AdapterBinding
from astraflow.weights.tensors import VerifiedWeights, build_layout
from tests import make_torch
from tests.raas.engines.local.test_adapters import SCALE, adapters_of, tensors_of

KINDS = ("sglang", "vllm")
MODEL = {**make_torch.TINY, "hidden_size": 64, "layers": 24, "max_context_tokens": 4096}
"""Head size 32: vLLM has no smaller one on a CPU. A step of this model takes about 10 ms: with steps of 2 ms vLLM's
frontend, which handles every token, answers no other request for seconds."""
PATIENT = {"probe_every_s": 3.0, "probe_timeout_s": 8.0, "stall_s": 10.0, "restarts": 1000, "context_tokens": 4096}
"""Options that find a hang soon, but give a busy machine time."""


def server(kind: str, **options: Any) -> ServerEngine:
    """Returns an engine that is not started. Raises: InvalidInput when it is not installed."""
    engine = engines.build({"kind": kind, **PATIENT, **options}, MODEL)
    assert isinstance(engine, ServerEngine)
    return engine


@cache
def version(number: int) -> VerifiedWeights:
    """Returns a version; each has other random weights."""
    return make_torch.published(make_torch.model(number, MODEL), number, dtype=Dtype.FLOAT32)


@cache
def delta_to(number: int) -> VerifiedWeights:
    """Returns a version as a delta from the previous one."""
    return make_torch.published(make_torch.model(number, MODEL), number, base=version(number - 1), dtype=Dtype.FLOAT32)


@cache
def adapters(number: int) -> VerifiedWeights:
    """Returns a version of adapters; their base is version 0."""
    return adapters_on(version(0), make_torch.model(0, MODEL), number)


@cache
def adapted(number: int) -> PreTrainedModel:
    """Returns the base with the adapters of a version added to its weights."""
    model = make_torch.model(0, MODEL)
    with torch.no_grad():
        for stem, (down, up) in adapters_of(model, number).items():
            named_weights(model)[f"{stem}.weight"].add_(SCALE * up @ down)
    return model


def adapters_on(base: VerifiedWeights, model: PreTrainedModel, number: int) -> VerifiedWeights:
    """Returns a version of adapters on the published weights of a model."""
    manifest, buffer = build_layout(
        tensors_of(adapters_of(model, number)),
        policy=PolicyId("solver"),
        version=Version(number),
        metadata=AdapterBinding.for_base(base.manifest, scale=SCALE).metadata(),
    )
    return VerifiedWeights(manifest=manifest, buffer=buffer, adapter_base=base)
