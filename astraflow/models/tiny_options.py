"""Options of the tiny model, and the configuration of each of its families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from astraflow.models.base import WarmStartOptions
from astraflow.models.tokenizers import char_tokenizer, char_vocab_size
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class TinyModelOptions(Config):
    """Sizes of the tiny model, and the warm start that gives it a useful initial accuracy."""

    family: Annotated[Literal["qwen3", "llama", "qwen35", "gpt_oss", "falcon_h1", "lfm2"], SettableBy.AGENT] = "qwen3"
    """Architecture: Qwen3, Llama, Qwen3.5 (every second layer has a recurrent state instead of attention), GPT-OSS
    (experts, sinks, windows), Falcon-H1 (attention and a recurrent state in each layer), or LFM2 (convolutions)."""
    hidden_size: int = Field(default=96, ge=8)
    """Width of the hidden states; a multiple of 2 * `heads`."""
    layers: int = Field(default=2, ge=1)
    """Number of layers."""
    heads: int = Field(default=4, ge=1)
    """Number of query heads."""
    key_value_heads: int = Field(default=2, ge=1)
    """Number of key and value heads; divides `heads`."""
    intermediate_size: int = Field(default=288, ge=8)
    """Width of the feed-forward layers; with experts, of each expert."""
    experts: int = Field(default=0, ge=0)
    """Experts of each layer, for a mixture of experts of the families qwen3 and qwen35 (Qwen3-MoE, Qwen3.5-MoE), and
    gpt_oss, which has four if not set; 0: dense."""
    experts_per_token: int = Field(default=2, ge=1)
    """Experts that compute a token."""
    window: int = Field(default=0, ge=0)
    """Tokens, itself included, that a token attends to in every second layer, from the first, in the families qwen3 and
    gpt_oss; 0: all, in all layers."""
    max_context_tokens: int = Field(default=512, ge=16)
    """Longest sequence. Tokens."""
    words: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Texts with a token of their own, such as the names and phrases of an environment, so that a conversation takes
    fewer tokens than characters; of at least two characters each."""
    initializer_std: float = Field(default=0.05, gt=0)
    """Standard deviation of the initial weights. The usual 0.02 is meant for wide models: at this width it needs three
    times as many steps before attention finds the letters."""
    seed: int = 0
    """Random seed of the initial weights and of the warm start."""
    warm_start: WarmStartOptions | None = None
    """Short supervised training on a task's answers; None starts from random weights."""

    @model_validator(mode="after")
    def _check_head_sizes(self) -> TinyModelOptions:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of 2 * heads = {2 * self.heads}; change one of them"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"heads {self.heads} is not a multiple of key_value_heads = {self.key_value_heads}; change one of them"
            )
        if 0 < self.experts < self.experts_per_token:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than experts = {self.experts}; change one of them"
            )
        if len(set(self.words)) < len(self.words) or any(len(word) < 2 for word in self.words):
            raise ValueError("words must be different, of at least two characters each")
        if self.experts and self.family not in ("qwen3", "qwen35", "gpt_oss"):
            raise ValueError(
                f"the family {self.family} has no experts; remove experts, or choose qwen3, qwen35 or gpt_oss"
            )
        if self.window and (self.family not in ("qwen3", "gpt_oss") or (self.family == "qwen3" and self.experts)):
            raise ValueError("only a Qwen3 without experts and a GPT-OSS have windows in some layers; remove window")
        return self


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
