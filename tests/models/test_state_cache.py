"""Continuing the states of a decoder is exact, in values and gradients, and leaves them as they were."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from astraflow.contract.errors import InvalidInput
from astraflow.models.output_head import decoder_of
from astraflow.models.state_cache import StateCache, recompute_with_states

_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_DELTA_RULE: dict[str, Any] = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
_WINDOWS: dict[str, Any] = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
_LATENT: dict[str, Any] = {
    **_EXPERTS,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3_5_text": _DELTA_RULE,
    "qwen3_next": {**_DELTA_RULE, **_EXPERTS, "shared_expert_intermediate_size": 16},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "nemotron_h": {
        **_EXPERTS,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
        "n_routed_experts": 4,
        "layers_block_type": ["mamba", "attention", "moe", "mamba"],
    },
    "bamba": {**_MAMBA, "attn_layer_indices": [1, 3]},
    "granitemoehybrid": {
        **_MAMBA,
        "layer_types": ["mamba", "attention"] * 2,
        "num_local_experts": 4,
        "shared_intermediate_size": 16,
    },
    "mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 2, "expand": 2},
    "olmo_hybrid": _DELTA_RULE,
    "gemma3_text": _WINDOWS,
    "gemma4_text": {
        **_WINDOWS,
        "initializer_range": 0.01,
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
    },
    "llama4_text": {"intermediate_size_mlp": 32, "num_local_experts": 4, "attention_chunk_size": 4},
    "deepseek_v3": _LATENT,
    "glm_moe_dsa": _LATENT,
}
_BY_TOKEN: dict[str, dict[str, Any]] = {
    "jamba": {
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "num_experts": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "falcon_mamba": {"state_size": 8},
}
"""Families whose states transformers continues only by one token: its scan over several tokens starts anew."""
_PROMPT, _TURN = 9, 13
"""Tokens that all rows share, and that the last two rows share; the windows above are shorter."""


def _model(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**{**_SIZES, **_FAMILIES.get(family, _BY_TOKEN.get(family, {}))})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    return model


def _ids() -> Tensor:
    ids = torch.randint(3, 64, (3, 19), generator=torch.Generator().manual_seed(1))
    ids[:, :_PROMPT] = ids[0, :_PROMPT]
    ids[1:, :_TURN] = ids[1, :_TURN]
    return ids


def _whole(model: PreTrainedModel, ids: Tensor) -> Tensor:
    hidden: Tensor = decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state
    return hidden


def _as_tree(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Returns the hidden states, of which shared tokens are computed once: the prompt, and a turn that continues it."""
    prompt, after_prompt = StateCache.empty(model).continued(model, ids[:1, :_PROMPT])
    first, _ = after_prompt.continued(model, ids[:1, _PROMPT:])
    turn, after_turn = after_prompt.continued(model, ids[1:2, _PROMPT:_TURN])
    second, after_second = after_turn.repeated(2).continued(model, ids[1:, _TURN : _TURN + 2])
    third, end = after_second.continued(model, ids[1:, _TURN + 2 :])
    assert (end.rows, end.length) == (2, ids.shape[1])
    return torch.cat(
        [
            torch.cat([prompt, first], dim=1),
            torch.cat([prompt.expand(2, -1, -1), turn.expand(2, -1, -1), second, third], dim=1),
        ]
    )


def _gradient(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, hidden.numel()).view_as(hidden)
    gradients = torch.autograd.grad(
        (hidden * weights).sum(), list(model.parameters()), allow_unused=True, materialize_grads=True
    )
    return torch.cat([gradient.flatten() for gradient in gradients])


def _gap(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize("family", _FAMILIES)
def test_continued_rows_equal_whole_rows_in_values_and_gradients(family: str) -> None:
    model = _model(family)
    whole, tree = _whole(model, _ids()), _as_tree(model, _ids())
    assert _gap(tree, whole) < 1e-5
    expected = _gradient(model, whole)
    tolerance = 5e-5 if family == "gemma4_text" else 1e-5  # its large attention scores magnify the rounding of float32
    assert _gap(_gradient(model, tree), expected) < tolerance


@pytest.mark.parametrize("family", _FAMILIES)
def test_recomputed_blocks_continue_the_states_before_them(family: str) -> None:
    model = _model(family).train()
    kept = _as_tree(model, _ids())
    expected = _gradient(model, kept)
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    recompute_with_states(model)
    computed: list[torch.nn.Module] = []
    for module in decoder_of(model).modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda layer, *_: computed.append(layer))
    tree = _as_tree(model, _ids())
    assert torch.equal(tree, kept)
    once = len(computed)
    assert _gap(_gradient(model, tree), expected) < 1e-6
    assert len(computed) > once


@pytest.mark.parametrize("family", [*_FAMILIES, *_BY_TOKEN])
@torch.no_grad()
def test_continuing_by_single_tokens_leaves_a_cache_as_it_was(family: str) -> None:
    model, ids = _model(family), _ids()
    _, start = StateCache.empty(model).continued(model, ids[:1, :_PROMPT])
    caches = []
    for row in ids:
        cache = start
        for position in range(_PROMPT, len(row)):
            last, cache = cache.continued(model, row[None, position : position + 1])
        caches.append(cache)
        assert _gap(last[0, 0], _whole(model, row[None])[0, -1]) < 1e-5
    joined = StateCache.joined(caches).selected(torch.tensor([2, 0]))
    further = torch.tensor([[5], [7]])
    expected = _whole(model, torch.cat([ids[[2, 0]], further], dim=1))[:, -1:]
    assert _gap(joined.continued(model, further)[0], expected) < 1e-5


def test_caches_of_different_lengths_are_not_joined() -> None:
    model = _model("qwen3")
    _, first = StateCache.empty(model).continued(model, torch.tensor([[3, 4]]))
    _, second = first.continued(model, torch.tensor([[5]]))
    with pytest.raises(InvalidInput) as refused:
        StateCache.joined([first, second])
    assert refused.value.code == "model.caches_differ"


@pytest.mark.parametrize("family", ["recurrent_gemma", "minimax", "rwkv"])
def test_a_model_that_keeps_its_states_elsewhere_is_refused(family: str) -> None:
    model = _model(family)
    with pytest.raises(InvalidInput) as refused:
        StateCache.empty(model).continued(model, torch.tensor([[3, 4]]))
    assert refused.value.code == "model.unsupported_cache"
