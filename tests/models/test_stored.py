"""Weights of a model folder are read one parameter at a time, with the values of the loaded model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.models.stored import StoredModel
from tests import make_torch

MOE: Mapping[str, Any] = {**make_torch.TINY, "experts": 3}


def open_folder(spec: Mapping[str, Any], folder: Path) -> StoredModel:
    return StoredModel.open(models.build(spec), folder)


@pytest.fixture(params=[make_torch.TINY, MOE], ids=["dense", "experts"])
def spec(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    return request.param  # type: ignore[no-any-return]


def test_stored_parameters_take_no_memory_and_have_the_values_of_the_loaded_model(spec: Mapping[str, Any]) -> None:
    source = models.build(spec)
    folder = source.prepare()
    stored = StoredModel.open(source, folder)

    expected = named_weights(source.load(folder))

    assert list(named_weights(stored.model)) == list(expected)
    assert stored.read is not None
    for name, parameter in named_weights(stored.model).items():
        assert parameter.is_meta
        assert torch.equal(stored.read(name), expected[name])
    assert not any(buffer.is_meta for buffer in stored.model.buffers())


def test_weights_are_read_from_several_files_and_rounded(spec: Mapping[str, Any], tmp_path: Path) -> None:
    source = models.build(spec)
    model = source.load(source.prepare())
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1

    stored = open_folder(spec, tmp_path).rounded_to(torch.bfloat16)

    assert stored.read is not None
    for name, weight in named_weights(model).items():
        assert torch.equal(stored.read(name), weight.to(torch.bfloat16))


def test_tied_weights_stay_tied() -> None:
    source = models.build(make_torch.TINY)
    model = StoredModel.open(source, source.prepare()).model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def rename(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.replace("self_attn", "attention"): value for name, value in tensors.items()}


def quantize(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(torch.int8) for name, value in tensors.items()}


def widen(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([value, value]) for name, value in tensors.items()}


@pytest.mark.parametrize("change", [rename, quantize, widen])
def test_a_folder_that_needs_a_conversion_is_loaded_whole(change: Any, tmp_path: Path) -> None:
    source = models.build(make_torch.TINY)
    whole = load_file(source.prepare() / "model.safetensors")
    save_file(change(whole), tmp_path / "model.safetensors")

    class Recording:
        def load(self, folder: Path) -> str:
            return f"loaded {folder}"

        def architecture(self) -> Any:
            return source.architecture()

    stored = StoredModel.open(Recording(), tmp_path)  # type: ignore[arg-type]  # what `open` needs of a source

    assert stored == StoredModel(model=f"loaded {tmp_path}", read=None)  # type: ignore[arg-type]
