"""Tiny configuration of every causal family of the installed transformers: some 100,000 parameters, random weights.

Sizes follow from the names of a configuration's values; a family has overrides only where its values depend on each
other. Layers are four, of each type that the full model has.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES: Mapping[str, str] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
"""Class of each causal family, by `model_type`."""

NOT_BUILT = {
    "blt": "reads bytes, cut into patches by a second model, and has tables of 500,000 hashes",
    "gemma3n": "its image encoder needs timm; its decoder is gemma3n_text",
    "gemma4_assistant": "drafts from the states of another model",
    "gemma4_unified_assistant": "drafts from the states of another model",
    "musicgen": "reads four tokens of sound for each position",
    "musicgen_melody": "reads four tokens of sound for each position",
}
"""Families without a tiny configuration, with the reason."""

VOCABULARY = 128
_LAYERS = 4


def _each(names: str, size: int) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


_SIZES = {
    **_each("vocab_size vocab_size_per_layer_input text_vocab_size unpadded_vocab_size", VOCABULARY),
    **_each("pronunciation_vocab_size shape_vocab_size", VOCABULARY),
    **_each("hidden_size d_model n_embd emb_dim embedding_size embedding_dim input_embedding_size", 64),
    **_each("output_embedding_size word_embed_proj_dim attention_hidden_size ple_embed_dim lru_width", 64),
    **_each("pronunciation_embed_dim shape_embed_dim", 64),
    **_each("num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers", _LAYERS),
    **_each("encoder_layers num_encoder_layers num_blocks", _LAYERS),
    **_each("num_attention_heads n_head n_heads attention_heads swa_num_attention_heads linear_num_heads", 4),
    **_each("decoder_attention_heads encoder_attention_heads num_decoder_attention_heads", 4),
    **_each("num_encoder_attention_heads mamba_num_heads linear_num_value_heads", 4),
    **_each("num_key_value_heads swa_num_key_value_heads num_kv_heads num_query_groups linear_num_key_heads", 2),
    **_each("head_dim dim_head d_head attention_head_dim attention_head_size kv_channels swa_head_dim", 16),
    **_each("linear_head_dim linear_key_head_dim linear_value_head_dim mamba_d_head mamba_head_dim v_head_dim", 16),
    **_each("intermediate_size ffn_dim dff d_inner dim_ff decoder_ffn_dim encoder_ffn_dim ffn_hidden_size", 96),
    **_each("feed_forward_size dense_intermediate_size", 96),
    **_each("moe_intermediate_size moe_shared_expert_intermediate_size shared_intermediate_size", 32),
    **_each("shared_expert_intermediate_size shared_experts_intermediate_size intermediate_size_mlp", 32),
    **_each("num_experts n_routed_experts num_local_experts moe_num_experts zero_expert_num", 4),
    **_each("num_experts_per_tok moe_k top_k experts_per_token moe_top_k num_experts_per_token moe_topk", 2),
    **_each("n_group num_expert_group topk_group first_k_dense_replace mamba_n_groups n_groups indexer_kv_heads", 1),
    **_each("kv_lora_rank q_lora_rank o_lora_rank gated_norm_rank time_step_rank mamba_dt_rank hc_lowrank", 16),
    **_each("mamba_d_state ssm_state_size state_size router_hidden_size adapter_rank laurel_rank rel_extent", 16),
    **_each("hidden_size_per_layer_input index_head_dim indexer_head_dim", 16),
    **_each("index_n_heads indexer_n_heads", 16),  # with few heads many scores are 0, and so equal
    **_each("qk_rope_head_dim qk_nope_head_dim rotary_dim d_rel", 8),
    **_each("sliding_window sliding_window_size attention_window_size attention_chunk_size window_size", 8),
    **_each("mamba_chunk_size chunk_size index_topk indexer_budget", 8),
    **_each("indexer_compress_ratio", 4),
    **_each("max_position_embeddings n_positions n_ctx max_seq_len context_length max_target_positions", 512),
    **_each("model_max_length original_max_position_embeddings", 512),
    **_each("pad_token_id", 0),
    **_each("bos_token_id decoder_start_token_id sep_token_id", 1),
    **_each("eos_token_id", 2),
}
"""Size of each value that configurations have, by name."""

_LATENT = {"head_dim": 8, "num_key_value_heads": 4}
"""Values of a configuration with latent attention: each head has keys of its own, with a rotary part of `head_dim`."""
_STATE = {"mamba_n_heads": 8}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention"] * 2}
_SHARED_ATTENTION = {
    "attention_head_dim": 32,
    "attention_hidden_size": 128,
    "num_key_value_heads": 4,
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
}

_OVERRIDES: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**_STATE, "attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10_000.0} for kind in _ALTERNATING}
    },
    "dbrx": {
        "attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_text": {"head_dim": 16, "per_layer_config": None},
    "falcon_h1": {**_STATE, "mamba_d_ssm": 128},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "layer_types": _ALTERNATING,
        "activation_sparsity_pattern": [0.5, 0.0, 0.5, 0.0],
    },
    "gemma4_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {**_STATE, "layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {**_CONVOLUTIONS, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**_CONVOLUTIONS, "num_dense_layers": 1},
    "longcat_flash": _LATENT,
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"]},
    "xmod": {"default_language": "en_XX"},
    "zamba": _SHARED_ATTENTION,
    "zamba2": {**_SHARED_ATTENTION, "mamba_headdim": 16, "n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}
"""Values by `model_type` of the configuration."""


def tiny_model(family: str, *, seed: int = 0, attention: str = "sdpa") -> PreTrainedModel:
    """Returns a tiny model of the family in float32, in evaluation mode; the global random state does not change.

    attention: of transformers; `eager` where the family does not have it.
    """
    logging.getLogger("transformers").setLevel(logging.ERROR)
    kind = getattr(transformers, FAMILIES[family])
    attention = attention if kind._supports_sdpa or attention != "sdpa" else "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind._from_config(tiny_configuration(family), attn_implementation=attention, dtype=torch.float32)
    return model.eval()  # type: ignore[no-any-return]


def tiny_configuration(family: str) -> PreTrainedConfig:
    """Returns the tiny configuration that the family's class takes; with images or sound, parts of them too."""
    default = CONFIG_MAPPING[family]()
    if not isinstance(default, getattr(transformers, FAMILIES[family]).config_class):
        default = default.get_text_config(decoder=True)
    values = _values(default)
    for name in type(default).sub_configs:
        part = getattr(default, name, None)
        if isinstance(part, PreTrainedConfig) and name not in values:
            values[name] = type(part)(**_values(part))
    return type(default)(**values)


def _values(default: PreTrainedConfig) -> dict[str, Any]:
    """Returns the values that make a configuration like `default` tiny."""
    kind = type(default)
    known = dict.fromkeys([*kind.attribute_map, *getattr(kind, "__annotations__", {})]) | default.to_dict()
    values: dict[str, Any] = {name: size for name, size in _SIZES.items() if name in known}
    for name, same in kind.attribute_map.items():
        if name in values and same in values:
            del values[name]
    if "is_decoder" in known:
        values["is_decoder"] = True
    if known.get("kv_lora_rank"):
        values |= {name: size for name, size in _LATENT.items() if name in known}
    for name in ("layer_types", "layers_block_type"):
        types = list(dict.fromkeys(known.get(name) or ()))
        if len(types) > 1:
            values[name] = [types[layer % len(types)] for layer in range(_LAYERS)]
    return {**values, **_OVERRIDES.get(default.model_type, {})}
