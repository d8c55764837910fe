"""Configurations of the tiny model's families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from astraflow.models.tokenizers import char_tokenizer, char_vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from astraflow.models.tiny import TinyModelOptions


def tiny_configuration(options: TinyModelOptions) -> PreTrainedConfig:
    """Returns the configuration of the options' family and sizes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    core = char_tokenizer(options.words)
    kind, values = family_values(options)
    create: Any = CONFIG_MAPPING[kind]
    configuration: PreTrainedConfig = create(
        vocab_size=char_vocab_size(options.words),
        hidden_size=options.hidden_size,
        intermediate_size=options.intermediate_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.key_value_heads,
        head_dim=options.hidden_size // options.heads,
        max_position_embeddings=options.max_context_tokens,
        tie_word_embeddings=True,
        pad_token_id=core.pad_token_id,
        eos_token_id=core.eos_token_id,
        bos_token_id=None,
        initializer_range=options.initializer_std,
        **values,
    )
    return configuration


def family_values(options: TinyModelOptions) -> tuple[str, dict[str, Any]]:
    """Returns the `model_type` of a family in transformers, and the values that only it has."""
    head = options.hidden_size // options.heads
    windows = {"layer_types": _alternating(options, "sliding_attention"), "sliding_window": options.window}
    experts = {"num_experts_per_tok": options.experts_per_token, "moe_intermediate_size": options.intermediate_size}
    match options.family:
        case "qwen3" if options.experts:
            return "qwen3_moe", {"num_experts": options.experts, "norm_topk_prob": True, **experts}
        case "qwen3":
            return "qwen3", {"use_sliding_window": True, **windows} if options.window else {}
        case "llama":
            return "llama", {}
        case "qwen35":
            state = {
                "layer_types": _alternating(options, "linear_attention"),
                "linear_key_head_dim": head,
                "linear_value_head_dim": head,
                "linear_num_key_heads": options.key_value_heads,
                "linear_num_value_heads": options.heads,
                "linear_conv_kernel_dim": 4,
            }
            shared = {"num_experts": options.experts, "shared_expert_intermediate_size": options.intermediate_size}
            return ("qwen3_5_moe_text", state | shared | experts) if options.experts else ("qwen3_5_text", state)
        case "gpt_oss":
            full = {"layer_types": ["full_attention"] * options.layers}
            chosen = {"num_local_experts": options.experts or 4, "num_experts_per_tok": options.experts_per_token}
            return "gpt_oss", {
                "attention_bias": True,
                **chosen,
                **_PLAIN_POSITIONS,
                **(windows if options.window else full),
            }
        case "falcon_h1":
            return "falcon_h1", {
                "mamba_d_ssm": 2 * options.hidden_size,
                "mamba_n_heads": 2 * options.heads,
                "mamba_d_head": head,
                "mamba_d_state": head,
                "mamba_d_conv": 4,
                "mamba_n_groups": 1,
                "mamba_chunk_size": 32,
            }
        case "lfm2":
            layers = {"layer_types": _alternating(options, "conv")}
            return "lfm2", {"conv_L_cache": 3, "block_auto_adjust_ff_dim": False, **layers}


_PLAIN_POSITIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
"""Positions without the factors for long sequences that a configuration has by default."""


def _alternating(options: TinyModelOptions, kind: str) -> list[str]:
    """Returns the types of the layers: `kind` in every second one, from the first, and full attention in the others."""
    return [(kind, "full_attention")[layer % 2] for layer in range(options.layers)]
