"""Shapes of models: their parameters are those of the models, wherever the sizes come from."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from astraflow.contract.errors import InvalidInput
from astraflow.models import models
from astraflow.models.shapes import KNOWN_MODELS, known_model, model_shape, read_shape
from benchmarks.model_families.configurations import tiny_model
from tests.errors import raises_code

TINY = {"kind": "tiny", "hidden_size": 32, "heads": 2, "key_value_heads": 1, "intermediate_size": 64}
LLAMA_3 = {"vocab_size": 128_256}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"experts": 4},
        {"family": "llama"},
        {"family": "qwen35", "layers": 3},
        {"family": "qwen35", "experts": 4},
        {"family": "gpt_oss"},
        {"family": "falcon_h1"},
        {"family": "lfm2"},
    ],
    ids=str,
)
def test_the_shape_of_a_tiny_model_has_the_parameters_of_the_model(options: dict[str, Any]) -> None:
    spec = {**TINY, **options}
    source = models.build(spec)
    shape = model_shape(spec)
    assert shape is not None
    weights = dict(source.architecture().named_parameters())
    assert shape.parameters == sum(parameter.numel() for parameter in weights.values())
    blocks: Counter[str] = Counter()
    for name, parameter in weights.items():
        blocks[name.partition(".layers.")[2].partition(".")[0]] += parameter.numel()
    assert shape.outer_parameters == blocks.pop("")
    assert shape.block_parameters == max(blocks.values())
    assert read_shape(source.prepare() / "config.json") == shape


@pytest.mark.parametrize(
    ("model", "kind", "values"),
    [
        ("Qwen3.5-4B", "qwen3_5_text", {"hidden_size": 2560, "intermediate_size": 9216, "tie_word_embeddings": True}),
        ("Qwen3.5-9B", "qwen3_5_text", {}),
        ("Qwen3.5-35B-A3B", "qwen3_5_moe_text", {}),
        ("gpt-oss-20b", "gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
        (
            "Llama-3.1-8B-Instruct",
            "llama",
            {"intermediate_size": 14_336, "num_key_value_heads": 8, "vocab_size": 128_256},
        ),
    ],
)
def test_known_models_have_the_parameters_of_their_configuration(
    model: str, kind: str, values: dict[str, Any], tmp_path: Path
) -> None:
    config = CONFIG_MAPPING[kind](**values)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    known = KNOWN_MODELS[model].shape

    config.save_pretrained(tmp_path)

    assert known.parameters == sum(parameter.numel() for parameter in built.parameters())
    assert read_shape(tmp_path / "config.json") == replace(known, context=config.max_position_embeddings)


def test_parameters_of_a_family_without_a_formula_are_counted(tmp_path: Path) -> None:
    model = tiny_model("nemotron_h")
    model.config.save_pretrained(tmp_path)

    assert read_shape(tmp_path / "config.json").parameters == sum(each.numel() for each in model.parameters())


def test_layers_with_a_state_have_no_key_value_cache() -> None:
    shape = KNOWN_MODELS["Qwen3.5-4B"].shape

    assert shape.cache_elements == 2 * 8 * 4 * 256
    assert shape.state_bytes == 24 * (4 * 32 * 128 * 128 + 2 * 4 * 8192)


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
