"""A model with a vision tower is trained on text, published and exported under the names of its checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from astraflow.contract.ids import PolicyId
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.stored import StoredModel
from astraflow.trainer.backends.local import LocalBackend
from astraflow.trainer.checkpoints import CheckpointIdentity, Checkpoints, TrainingProgress
from astraflow.trainer.export import export_checkpoint
from astraflow.trainer.retention import Retention
from tests.trainer.backends.test_buffers import SIZES, weights_of
from tests.trainer.backends.test_local import batch, local

VISION = {"hidden_size": 16, "intermediate_size": 24, "patch_size": 14}
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {**SIZES, "sliding_window": 8},
        "vision_config": {**VISION, **LAYERS},
        "mm_tokens_per_image": 4,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **SIZES},
        "vision_config": {"model_type": "pixtral", **VISION, **LAYERS},
    },
    "qwen3_5": {
        "text_config": {
            **SIZES,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
        },
        "vision_config": {**VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 4},
    },
}
MTP = "mtp.layers.0.mlp.up_proj.weight"
"""Tensor of the checkpoint that the model class does not have."""


@pytest.fixture(scope="module", params=MODELS)
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, **MODELS[request.param])
    folder = tmp_path_factory.mktemp("model")
    AutoModelForImageTextToText.from_config(config).bfloat16().save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, MTP: torch.randn(3, 5)}, file, metadata={"format": "pt"})
    return {"kind": "huggingface", "path": str(folder)}


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def is_vision(name: str) -> bool:
    return any(part in name for part in ("vision_tower", "visual", "multi_modal_projector"))


def test_the_vision_tower_is_published_but_not_trained(spec: Mapping[str, Any]) -> None:
    backend = local(model=spec)
    assert isinstance(backend, LocalBackend)
    source = tensors_of(Path(spec["path"]))

    before = {tensor.name: tensor for tensor in weights_of(backend).manifest.tensors}
    backend.step(batch())
    after = {tensor.name: tensor for tensor in weights_of(backend).manifest.tensors}

    assert before.keys() == source.keys() - {MTP}
    changed = {name for name in after if after[name].hash != before[name].hash}
    assert changed
    assert not any(map(is_vision, changed))
    moments = {name for name in backend._engine.state_tensors() if name.startswith("exp_avg")}
    assert not any(map(is_vision, moments))


def test_the_export_has_every_tensor_and_the_configuration_of_the_source(
    spec: Mapping[str, Any], tmp_path: Path
) -> None:
    backend = local(model=spec)
    backend.step(batch())
    identity = CheckpointIdentity(policy=PolicyId("solver"), model=dict(spec), backend="local")
    store = Checkpoints(tmp_path / "checkpoints", identity, keep=Retention(newest=1))
    store.folder.mkdir()
    published = {name: dtype.value for name, (dtype, _) in backend.published_shapes.items()}
    store.save(TrainingProgress(run="run", step=1, report=None), backend.capture().write, published=published)

    export_checkpoint(store.folder, tmp_path / "export")

    source, exported = tensors_of(Path(spec["path"])), tensors_of(tmp_path / "export")
    assert exported.keys() == source.keys()
    for name, values in source.items():
        assert exported[name].dtype == values.dtype
        assert torch.equal(exported[name], values) or not (is_vision(name) or name == MTP), name
    read: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "export", output_loading_info=True)
    assert not read[1]["missing_keys"]
    assert type(read[0]).__name__ in AutoConfig.from_pretrained(Path(spec["path"])).architectures


def test_stored_weights_of_the_whole_model_are_read_from_the_files(spec: Mapping[str, Any]) -> None:
    source = models.build(spec)
    stored = StoredModel.open(source, source.prepare())

    assert stored.read is not None
    frozen = {name for name, weight in stored.model.named_parameters() if not weight.requires_grad}
    assert frozen
    assert all(map(is_vision, frozen))


def test_adapters_have_the_vision_tower_in_their_base(spec: Mapping[str, Any]) -> None:
    base = local(model=spec, lora={"rank": 2}).frozen_base

    assert base is not None
    assert base.shapes.keys() == tensors_of(Path(spec["path"])).keys() - {MTP}
    assert {dtype for dtype, _ in base.shapes.values()} == {Dtype.BFLOAT16}
