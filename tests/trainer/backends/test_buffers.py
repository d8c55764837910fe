"""Buffers that a checkpoint keeps are weights: published, loaded by nodes, exported and restored, in their own type."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.causal import kept_buffers
from astraflow.models.stored import StoredModel
from astraflow.raas.engines import engines
from astraflow.raas.engines.local_torch import LocalTorchEngine
from astraflow.trainer.backends.base import Backend
from astraflow.trainer.backends.local import LocalBackend
from astraflow.trainer.checkpoints import CheckpointIdentity, Checkpoints, TrainingProgress
from astraflow.trainer.export import export_checkpoint
from astraflow.trainer.retention import Retention
from astraflow.weights.codec.delta import encode_delta
from astraflow.weights.tensors import VerifiedWeights, build_layout
from tests import make_torch
from tests.snapshots import snapshot_of
from tests.trainer.backends.test_adapters import base_of, base_root
from tests.trainer.backends.test_local import batch, local, probed

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}


MODELS: dict[str, dict[str, Any]] = {
    "glm4_moe": EXPERTS,
    "gemma4_text": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
}


@pytest.fixture(scope="module", params=MODELS)
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """A model folder whose buffers are not those of a new model; float32, beside bfloat16 weights."""
    torch.manual_seed(0)
    model = make_torch.causal_model(request.param, **SIZES, **MODELS[request.param])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
            parameter.mul_(4 if parameter.ndim > 1 else 1)
        for buffer in kept_buffers(model).values():
            buffer.copy_(0.1 + torch.rand(buffer.shape))
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return {"kind": "huggingface", "path": str(folder)}


def loaded(spec: Mapping[str, Any]) -> PreTrainedModel:
    source = models.build(spec)
    return source.load(source.prepare())


def weights_of(backend: Backend, version: int = 0) -> VerifiedWeights:
    manifest, buffer = build_layout(snapshot_of(backend).tensors, policy=PolicyId("solver"), version=Version(version))
    return VerifiedWeights(manifest=manifest, buffer=buffer)


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        values: Tensor = model(input_ids=torch.arange(3, 40)[None], use_cache=False).logits
    return values


@pytest.mark.anyio
async def test_a_node_computes_with_the_published_buffers(spec: Mapping[str, Any]) -> None:
    backend = local(model=spec)
    backend.step(batch())
    engine = engines.build({"kind": "local_torch", "device": "cpu"}, spec)
    assert isinstance(engine, LocalTorchEngine)
    try:
        await engine.load(weights_of(backend))
        probe = backend.probe()
        assert probe is not None
        for tokens, begin, logprobs in probed(probe):
            scores = await engine.score(tokens, begin)
            assert np.abs(scores - logprobs).max() < 1e-4
    finally:
        await engine.close()


def test_buffers_are_published_in_float32_and_unchanged_ones_cost_nothing(spec: Mapping[str, Any]) -> None:
    backend = local(model=spec)
    buffers = kept_buffers(loaded(spec))
    before = weights_of(backend)
    backend.step(batch())
    after = weights_of(backend, version=1)

    kept = {tensor.name for tensor in after.manifest.tensors if tensor.dtype is Dtype.FLOAT32}
    assert len(kept) == len(buffers) > 0
    pairs = zip(before.manifest.tensors, after.manifest.tensors, strict=True)
    changed = {old.name for old, new in pairs if old.hash != new.hash}
    assert changed
    assert changed.isdisjoint(kept)
    size = len(encode_delta(before.manifest, before.buffer, after.manifest, after.buffer).data)
    fixed = after.buffer.copy()
    first = sum(tensor.size_bytes for tensor in after.manifest.tensors if tensor.name in kept)
    fixed[first:] = before.buffer[first:]
    assert len(encode_delta(before.manifest, before.buffer, before.manifest, fixed).data) < size // 10


def test_a_stored_model_reads_buffers_without_loading_the_model(spec: Mapping[str, Any]) -> None:
    source = models.build(spec)
    stored = StoredModel.open(source, source.prepare())

    assert stored.read is not None
    assert all(parameter.is_meta for parameter in stored.model.parameters())
    for name, buffer in kept_buffers(loaded(spec)).items():
        assert torch.equal(kept_buffers(stored.model)[name], buffer)
        assert torch.equal(stored.read(name), buffer)


def test_a_changed_buffer_survives_a_restart_and_is_exported(spec: Mapping[str, Any], tmp_path: Path) -> None:
    first, second = local(model=spec), local(model=spec)
    assert isinstance(first, LocalBackend)
    name, changed = next(iter(first._engine._constants.items()))
    changed.add_(0.25)
    first.step(batch())
    identity = CheckpointIdentity(policy=PolicyId("solver"), model=dict(spec), backend="local")
    store = Checkpoints(tmp_path / "checkpoints", identity, keep=Retention(newest=1))
    store.folder.mkdir()
    published = {name: dtype.value for name, (dtype, _) in first.published_shapes.items()}
    store.save(TrainingProgress(run="run", step=1, report=None), first.capture().write, published=published)

    store.load(second.load)
    export_checkpoint(store.folder, tmp_path / "export")

    assert isinstance(second, LocalBackend)
    assert torch.equal(second._engine._constants[name], changed)
    assert weights_of(second).manifest.root_hash == weights_of(first).manifest.root_hash
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype="float32")
    assert torch.equal(kept_buffers(exported)[name], changed)
    assert torch.equal(logits(exported), logits(second._engine._scorers[next(iter(second._engine._scorers))].model))


def test_the_base_of_adapters_has_the_buffers(spec: Mapping[str, Any]) -> None:
    backend = local(model=spec, lora={"rank": 2})
    base = base_of(backend)

    assert sum(dtype is Dtype.FLOAT32 for dtype, _ in base.shapes.values()) == len(kept_buffers(loaded(spec)))
    assert base_root(base) == base.root_hash
    assert {dtype for dtype, _ in backend.published_shapes.values()} == {Dtype.BFLOAT16}
    assert not any("experts." in name.replace("shared_experts", "") for name in backend.published_shapes)
