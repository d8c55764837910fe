"""Models with layers that trainer and local engine would compute wrongly are refused, with the type of the layer."""

from collections.abc import Callable

import pytest
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from astraflow.contract.errors import InvalidInput
from astraflow.models.causal import check_supported
from tests.errors import raises_code

SIZES = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}

REFUSED: dict[str, tuple[str, Callable[[], PreTrainedModel]]] = {
    "gemma3": (
        "sliding_attention",
        lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(layer_types=["sliding_attention", "full_attention"], sliding_window=512, **SIZES)
        ),
    ),
    "mistral": ("sliding_attention", lambda: MistralForCausalLM(MistralConfig(sliding_window=512, **SIZES))),
    "qwen2": (
        "sliding_attention",
        lambda: Qwen2ForCausalLM(
            Qwen2Config(use_sliding_window=True, sliding_window=512, max_window_layers=1, **SIZES)
        ),
    ),
    "qwen3-next": (
        "linear_attention",
        lambda: Qwen3NextForCausalLM(
            Qwen3NextConfig(
                layer_types=["linear_attention", "full_attention"],
                num_experts=2,
                num_experts_per_tok=1,
                moe_intermediate_size=4,
                shared_expert_intermediate_size=4,
                linear_num_key_heads=1,
                linear_num_value_heads=2,
                linear_key_head_dim=4,
                linear_value_head_dim=4,
                **SIZES,
            )
        ),
    ),
    "mamba": (
        "recurrent state",
        lambda: MambaForCausalLM(MambaConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, state_size=4)),
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_layers_without_full_attention_are_refused_by_their_type(kind: str) -> None:
    layer_type, build = REFUSED[kind]
    with raises_code(InvalidInput, "model.unsupported_attention", layer_type):
        check_supported(build())


def test_a_window_that_is_not_used_is_no_obstacle() -> None:
    check_supported(Qwen2ForCausalLM(Qwen2Config(use_sliding_window=False, sliding_window=512, **SIZES)))
    check_supported(MistralForCausalLM(MistralConfig(sliding_window=None, **SIZES)))
