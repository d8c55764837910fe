"""Models from local folders, and the errors for invalid folders."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from astraflow.contract.errors import InvalidInput
from astraflow.models import build_tokenizer, models
from astraflow.models.causal import named_weights
from tests.errors import raises_code

TINY = {"kind": "tiny", "hidden_size": 32, "heads": 2, "key_value_heads": 1, "intermediate_size": 64}


@pytest.fixture
def folder() -> Path:
    return models.build(TINY).prepare()


def test_a_saved_tiny_model_loads_as_a_hugging_face_model(folder: Path) -> None:
    spec = {"kind": "huggingface", "path": str(folder)}
    source = models.build(spec)
    question = [{"role": "user", "content": "rev abcd="}]

    weights = named_weights(source.load(source.prepare()))

    expected = named_weights(models.build(TINY).architecture())
    assert list(weights) == list(expected)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    own = build_tokenizer(spec)
    assert own.encode_chat(question).tolist() == build_tokenizer(TINY).encode_chat(question).tolist()
    assert own.stop_tokens == build_tokenizer(TINY).stop_tokens


def test_a_node_needs_no_weight_files(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(folder / name, tmp_path)
    source = models.build({"kind": "huggingface", "path": str(tmp_path)})

    shapes = {name: weight.shape for name, weight in named_weights(source.architecture()).items()}

    expected = named_weights(models.build(TINY).architecture())
    assert shapes == {name: weight.shape for name, weight in expected.items()}
    assert source.tokenizer().vocab_size == 128
    with raises_code(InvalidInput, "model.no_weights"):
        source.prepare()


def test_variables_of_the_chat_template_are_those_of_the_options(folder: Path) -> None:
    template = "{{ reasoning_effort }} {{ enable_thinking }} {{ messages[0].content }}"
    (folder / "chat_template.jinja").write_text(template)
    values = {"reasoning_effort": "low", "enable_thinking": True}
    spec = {"kind": "huggingface", "path": str(folder), "thinking": False, "template_values": values}
    tokenizer = build_tokenizer(spec)
    assert tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "hi"}])) == "low False hi"


def test_published_weights_have_no_quantisation_of_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    quantised = tmp_path / "quantised"
    shutil.copytree(folder, quantised)
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    served = tmp_path / "served"
    served.mkdir()

    models.build({"kind": "huggingface", "path": str(quantised)}).write_server_files(served)

    assert json.loads((served / "config.json").read_text()) == config


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "model.folder_not_found") as caught:
        models.build({"kind": "huggingface", "path": str(tmp_path / "qwen")}).architecture()
    assert caught.value.code == "model.folder_not_found"


def test_a_parent_folder_is_refused_with_the_model_folder(folder: Path) -> None:
    with raises_code(InvalidInput, "model.no_config", f"'{folder}'"):
        build_tokenizer({"kind": "huggingface", "path": str(folder.parent)})


def test_a_folder_without_a_tokenizer_is_refused_with_the_missing_file(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()

    with raises_code(InvalidInput, "model.no_tokenizer", "tokenizer.json"):
        build_tokenizer({"kind": "huggingface", "path": str(folder)})


def test_a_tokenizer_without_a_chat_template_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()

    with raises_code(InvalidInput, "model.no_chat_template"):
        build_tokenizer({"kind": "huggingface", "path": str(folder)})
