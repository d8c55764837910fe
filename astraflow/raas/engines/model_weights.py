"""Weights of a model in this process, in the form in which engines load a published version."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedModel

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Probe
from astraflow.models import models
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import published_tensors
from astraflow.weights.tensors import VerifiedWeights, build_layout

_PROBE_TOKENS = 300
_STORED = {str(torch_dtype_of(dtype)): dtype for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16)}


def folder_weights(spec: Mapping[str, Any], *, policy: PolicyId) -> VerifiedWeights:
    """Returns the weights of a model folder as version 0, in the element type in which it stores them.

    spec: of a model whose `prepare` returns a folder. Raises: InvalidInput when the folder has no usable weights.
    """
    source = models.build(spec)
    folder = source.prepare()
    try:
        model = source.load(folder).eval()
    except (OSError, ValueError, RuntimeError) as problem:
        raise InvalidInput(
            f"cannot load the weights of {str(folder)!r}: {problem}; use a folder in Hugging Face format, such as one "
            "of astraflow export",
            code="model.unreadable_weights",
        ) from problem
    return weights_of(model, policy=policy, version=Version(0), dtype=_stored_dtype(folder))


def weights_of(model: PreTrainedModel, *, policy: PolicyId, version: Version, dtype: Dtype) -> VerifiedWeights:
    """Returns the weights of the model, rounded to `dtype` in place, with a probe of the model itself."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch_dtype_of(dtype)))
    tensors = published_tensors(model, dtype)
    probe = _probe(model, int(model.config.get_text_config().vocab_size))
    manifest, buffer = build_layout(tensors, policy=policy, version=version, probe=probe)
    return VerifiedWeights(manifest=manifest, buffer=buffer)


def _probe(model: PreTrainedModel, vocab_size: int) -> Probe:
    """Returns the logprobs of random tokens by the plain forward pass of the model."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", _PROBE_TOKENS)
    tokens = np.random.default_rng(0).integers(1, vocab_size, min(_PROBE_TOKENS, context))
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0].float()
    scores = logits.log_softmax(-1)[:-1].gather(1, torch.from_numpy(tokens)[1:, None])[:, 0]
    return Probe(
        tokens=tokens.astype("<i4").tobytes(),
        lengths=(len(tokens),),
        scored_from=(1,),
        logprobs=scores.numpy().astype("<f4").tobytes(),
    )


def _stored_dtype(folder: Path) -> Dtype:
    """Returns the element type of the folder's configuration; float32, which holds the others, when it names none."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return _STORED.get(str(config.get_text_config().dtype or config.dtype), Dtype.FLOAT32)
