"""Shapes of models: their parameters are those of the models, wherever the sizes come from."""

import json
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.shapes import KNOWN_MODELS, known_model, model_shape, read_shape
from tests.errors import raises_code

TINY = {"kind": "tiny", "hidden_size": 32, "heads": 2, "key_value_heads": 1, "intermediate_size": 64}


@pytest.mark.parametrize("experts", [0, 4])
def test_the_shape_of_a_tiny_model_has_the_parameters_of_the_model(experts: int) -> None:
    spec = {**TINY, "experts": experts}
    source = models.build(spec)
    shape = model_shape(spec)
    assert shape is not None
    assert shape.parameters == sum(parameter.numel() for parameter in source.architecture().parameters())
    assert read_shape(source.prepare() / "config.json") == shape


def test_a_model_without_a_folder_is_known_by_the_name_of_the_folder() -> None:
    spec = {"kind": "huggingface", "path": "/none/such/Qwen3-8B"}
    known = known_model(spec)
    assert known is not None
    assert model_shape(spec) == known.shape == KNOWN_MODELS["Qwen3-8B"].shape
    assert known.hub == "Qwen/Qwen3-8B"
    assert model_shape({"kind": "huggingface", "path": "/none/such/other"}) is None
    assert model_shape({"kind": "scripted"}) is None


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"hidden_size": 4})])
def test_a_configuration_without_sizes_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with raises_code(InvalidInput, "model.no_sizes", "config.json"):
        read_shape(tmp_path / "config.json")
