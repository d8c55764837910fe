"""Weights are published under the names of the Hugging Face checkpoint, which splits what transformers joins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models import models, published
from astraflow.models.causal import kept_buffers, named_weights
from astraflow.models.published import matrix_shapes, published_parts, published_tensors
from tests.errors import raises_code
from tests.make_torch import causal_model, published_weights

SIZES: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts_per_tok": 2,
}


V4_SIZES: dict[str, Any] = {
    "head_dim": 8,
    "q_lora_rank": 4,
    "o_groups": 2,
    "o_lora_rank": 2,
    "n_routed_experts": 3,
    "moe_intermediate_size": 4,
    "index_n_heads": 2,
    "index_head_dim": 4,
    "mlp_layer_types": ["hash_moe", "moe"],
    "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
    "partial_rotary_factor": 0.5,
}


def tiny() -> PreTrainedModel:
    sizes = {"hidden_size": 16, "heads": 2, "key_value_heads": 1, "intermediate_size": 24}
    return models.build({"kind": "tiny", "experts": 3, **sizes}).architecture()


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "tiny": tiny,
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(num_local_experts=3, **SIZES)),
    "shared expert, dense layer": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            num_experts=3,
            moe_intermediate_size=4,
            shared_expert_intermediate_size=5,
            mlp_only_layers=[0],
            tie_word_embeddings=True,
            **SIZES,
        )
    ),
    "stacks in the checkpoint too": lambda: GptOssForCausalLM(GptOssConfig(num_local_experts=3, head_dim=4, **SIZES)),
    "dense": models.build({"kind": "tiny"}).architecture,
    "biases of routers": lambda: causal_model(
        "glm4_moe", n_routed_experts=3, moe_intermediate_size=4, first_k_dense_replace=1, **SIZES
    ),
    "scalars of layers": lambda: causal_model("gemma4_text", head_dim=4, hidden_size_per_layer_input=0, **SIZES),
    "numbers to look up": lambda: causal_model("deepseek_v4", **SIZES, **V4_SIZES),
}


@pytest.mark.parametrize("kind", MODELS)
def test_published_weights_are_those_of_the_saved_checkpoint(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    for buffer in kept_buffers(model).values():
        buffer.copy_(torch.randint(9, buffer.shape))
    model.save_pretrained(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")

    weights = published_weights(model)

    assert set(weights) == set(expected)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_buffers_are_published_in_their_own_type() -> None:
    tensors = published_tensors(MODELS["numbers to look up"](), Dtype.BFLOAT16)

    assert tensors["model.embed_tokens.weight"][0] is Dtype.BFLOAT16
    types = {name.rpartition(".")[2]: dtype for name, (dtype, _, _) in tensors.items() if dtype is not Dtype.BFLOAT16}
    assert types == {"bias": Dtype.FLOAT32, "tid2eid": Dtype.INT32}


def test_a_buffer_of_another_type_is_refused() -> None:
    model = tiny()
    model.register_buffer("flags", torch.zeros(2, dtype=torch.bool))

    with raises_code(InvalidInput, "model.unsupported_weights", "flags"):
        published_parts(model)


def test_a_loaded_model_is_published_as_a_new_one() -> None:
    spec = {"kind": "tiny", "experts": 3, "hidden_size": 16, "heads": 2, "key_value_heads": 1}
    source = models.build(spec)

    assert published_parts(source.load(source.prepare())) == published_parts(source.architecture())


def test_the_matrices_of_experts_are_known() -> None:
    shapes = matrix_shapes(published_parts(tiny()))

    assert shapes["model.layers.0.mlp.experts.gate_up_proj"] == (24, 16)
    assert shapes["model.layers.0.mlp.experts.down_proj"] == (16, 24)


def test_parts_that_are_not_contiguous_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"

    def transposed(_model: object, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**weights, name: weights[name].transpose(0, 1)}

    def incomplete(_model: object, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**weights, name: weights[name][1:]}

    for conversion in (transposed, incomplete):
        monkeypatch.setattr(published, "revert_weight_conversion", conversion)
        with raises_code(InvalidInput, "model.unsupported_weights", name):
            published_parts(tiny())


def test_parts_share_the_memory_of_the_model() -> None:
    model = tiny()
    weights = published_weights(model)

    with torch.no_grad():
        named_weights(model)["model.layers.1.mlp.experts.gate_up_proj"][2, 24:].fill_(7.0)

    assert torch.equal(weights["model.layers.1.mlp.experts.2.up_proj.weight"], torch.full((24, 16), 7.0))
