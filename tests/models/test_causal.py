"""Windows are computed; other layers that are not full attention are refused, with their type."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from astraflow.contract.errors import InvalidInput
from astraflow.models.causal import attention_window, check_supported, hidden_states
from astraflow.models.masks import RaggedMasks
from astraflow.trainer.engines.base import Batching
from astraflow.trainer.engines.scoring.choice import choose_batching
from astraflow.trainer.engines.scoring.scorer import Scorer
from tests.errors import raises_code

SIZES: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}

REFUSED: dict[str, tuple[str, Callable[[], PreTrainedModel]]] = {
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
        "linear_attention",
        lambda: MambaForCausalLM(MambaConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, state_size=4)),
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_layers_without_full_attention_are_refused_by_their_type(kind: str) -> None:
    layer_type, build = REFUSED[kind]
    with raises_code(InvalidInput, "model.unsupported_attention", layer_type):
        check_supported(build())


WINDOWED: dict[str, Callable[[], PreTrainedModel]] = {
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(layer_types=["sliding_attention", "full_attention"], sliding_window=512, **SIZES)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(sliding_window=512, **SIZES)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(use_sliding_window=True, sliding_window=512, max_window_layers=1, **SIZES)
    ),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(sliding_window=512, num_local_experts=2, num_experts_per_tok=1, **SIZES)
    ),
}


@pytest.mark.parametrize("kind", WINDOWED)
def test_windows_are_computed_in_packs_and_with_a_cache(kind: str) -> None:
    model = WINDOWED[kind]().eval()
    check_supported(model)
    assert attention_window(model) == 512
    choice = choose_batching(Scorer(WINDOWED[kind](), torch.device("cpu")), setting="")
    assert choice.batching is Batching.PACKED
    holders: list[Any] = [model.config, *model.modules()]
    for holder in holders:
        if getattr(holder, "sliding_window", None) == 512:
            holder.sliding_window = 4
    ids = torch.arange(1, 13)[None]
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        states = hidden_states(model, ids, masks=RaggedMasks(model).of(torch.arange(12)[None], 12))
        full = hidden_states(model, ids, masks=torch.ones(12, 12, dtype=torch.bool).tril()[None, None])
    torch.testing.assert_close(model.get_output_embeddings()(states), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(states, full, atol=1e-5)


def test_a_model_with_a_window_that_the_plan_does_not_have_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = WINDOWED["qwen2"]()
    for layer in model.model.layers:
        monkeypatch.setattr(layer.self_attn, "sliding_window", 9)
    choice = choose_batching(Scorer(model, torch.device("cpu")), setting="")
    assert choice.batching is Batching.TREE
    assert "window" in choice.rejected[Batching.PACKED]


def test_a_window_that_is_not_used_is_no_obstacle() -> None:
    check_supported(Qwen2ForCausalLM(Qwen2Config(use_sliding_window=False, sliding_window=512, **SIZES)))
    check_supported(MistralForCausalLM(MistralConfig(sliding_window=None, **SIZES)))
