"""Builders that need torch: small models and their weights as a node receives them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.published import published_parameters, published_tensors
from astraflow.weights.tensors import VerifiedWeights, build_layout

TINY: Mapping[str, Any] = {"kind": "tiny", "hidden_size": 32, "heads": 2, "key_value_heads": 1, "intermediate_size": 64}
"""A model whose step takes about a millisecond."""


def model(seed: int = 0, spec: Mapping[str, Any] = TINY) -> PreTrainedModel:
    """Returns a small model with bf16 values in float32 tensors, as a CPU trainer holds them."""
    network = models.build({**spec, "seed": seed}).architecture()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return network


def causal_model(kind: str, **sizes: Any) -> PreTrainedModel:
    """Returns a model of transformers with random weights. kind: type of its configuration, such as `glm4_moe`."""
    network: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    return network


def published(
    source: PreTrainedModel, version: int = 0, *, base: VerifiedWeights | None = None, dtype: Dtype = Dtype.BFLOAT16
) -> VerifiedWeights:
    """Returns a model's weights as one version; with `base`, as a delta from it."""
    manifest, buffer = build_layout(
        published_tensors(source, dtype), policy=PolicyId("solver"), version=Version(version)
    )
    if base is None:
        return VerifiedWeights(manifest=manifest, buffer=buffer)
    changes = {}
    for spec in manifest.tensors:
        span = slice(spec.offset, spec.offset + spec.size_bytes)
        width = f"<u{spec.dtype.size_bytes}"
        changes[spec.name] = np.flatnonzero(buffer[span].view(width) != base.buffer[span].view(width))
    return VerifiedWeights(manifest=manifest, buffer=buffer, base=base.manifest.version, changes=changes)


def published_weights(source: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Returns the weights of a model by published name, sharing its memory."""
    return {
        part.name: part.of(published.parameter.data)
        for published in published_parameters(source)
        for part in published.parts
    }


def logprobs(source: PreTrainedModel, tokens: np.ndarray[Any, Any], scored_from: int) -> np.ndarray[Any, Any]:
    """Returns logprobs of `tokens[scored_from:]` by transformers' own forward, one sequence at a time: slow, simple."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        all_logprobs = source(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    values = [float(all_logprobs[index - 1, int(tokens[index])]) for index in range(scored_from, len(tokens))]
    return np.array(values, dtype=np.float32)
