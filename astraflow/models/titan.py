"""torchtitan's dense Qwen3 with the weights of a transformers model. torchtitan is imported on first use.

Source: https://github.com/pytorch/torchtitan, release 0.3.0.
"""

from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import nn
from transformers import PreTrainedModel, Qwen3ForCausalLM

from astraflow.contract.errors import InvalidInput
from astraflow.models.causal import attention_window, named_weights

INSTALL = "pip install 'astraflow[titan]' && pip install --no-deps torchtitan==0.3.0"

_PARTS = {
    "torchtitan.distributed.fsdp": ("apply_fsdp_to_decoder",),
    "torchtitan.models.common": ("CosSinRoPE", "Embedding", "Linear"),
    "torchtitan.models.common.attention": ("ScaledDotProductAttention",),
    "torchtitan.models.common.config_utils": ("make_ffn_config", "make_gqa_config"),
    "torchtitan.models.common.nn_modules": ("RMSNorm",),
    "torchtitan.models.qwen3.model": ("Qwen3Model", "Qwen3TransformerBlock"),
    "torchtitan.models.qwen3.state_dict_adapter": ("Qwen3StateDictAdapter",),
}
"""Names that the engine uses, by module."""


def titan_model(source: PreTrainedModel) -> Any:
    """Returns torchtitan's model with the weights of a transformers model, in float32. Raises: InvalidInput."""
    if not isinstance(source, Qwen3ForCausalLM):
        raise unsupported_by_titan(type(source).__name__, "it builds dense Qwen3 models only")
    config: Any = source.config
    if config.rope_parameters["rope_type"] != "default" or config.attention_bias or attention_window(source):
        raise unsupported_by_titan(type(source).__name__, "it has scaled positions, biases in its attention or windows")
    titan = torchtitan()
    model = titan.Qwen3Model(titan_config(config))
    weights = {name: weight.detach().float() for name, weight in named_weights(source).items()}
    model.load_state_dict(titan.Qwen3StateDictAdapter(model.config, None).from_hf(weights))
    return model


def hugging_face_names(model: Any) -> dict[str, str]:
    """Returns torchtitan's name of each parameter of its model by Hugging Face name, tied ones once."""
    adapter = torchtitan().Qwen3StateDictAdapter(model.config, None)
    names: dict[str, str] = adapter.to_hf({name: name for name, _ in model.named_parameters()})
    return names


def titan_config(config: Any) -> Any:
    """Returns torchtitan's configuration of a dense Qwen3, from that of transformers (`Qwen3Config`)."""
    titan = torchtitan()
    init = {"weight": nn.init.zeros_}  # never used: the weights are loaded
    norm = partial(titan.RMSNorm.Config, eps=config.rms_norm_eps, param_init=init)
    layer = titan.Qwen3TransformerBlock.Config(
        attention_norm=norm(normalized_shape=config.hidden_size),
        ffn_norm=norm(normalized_shape=config.hidden_size),
        attention=titan.make_gqa_config(
            dim=config.hidden_size,
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            wqkv_param_init=init,
            wo_param_init=init,
            inner_attention=titan.ScaledDotProductAttention.Config(),
            rope=titan.CosSinRoPE.Config(
                dim=config.head_dim,
                max_seq_len=config.max_position_embeddings,
                theta=config.rope_parameters["rope_theta"],
            ),
            qk_norm=norm(normalized_shape=config.head_dim),
        ),
        feed_forward=titan.make_ffn_config(
            dim=config.hidden_size, hidden_dim=config.intermediate_size, w1_param_init=init, w2w3_param_init=init
        ),
    )
    return titan.Qwen3Model.Config(
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        norm=norm(normalized_shape=config.hidden_size),
        enable_weight_tying=config.tie_word_embeddings,
        tok_embeddings=titan.Embedding.Config(
            num_embeddings=config.vocab_size, embedding_dim=config.hidden_size, param_init=init
        ),
        lm_head=titan.Linear.Config(in_features=config.hidden_size, out_features=config.vocab_size, param_init=init),
        layers=[layer] * config.num_hidden_layers,
    )


def torchtitan() -> SimpleNamespace:
    """Returns the parts of torchtitan that the engine uses, imported on first use. Raises: InvalidInput."""
    try:
        parts = {name: getattr(import_module(module), name) for module, names in _PARTS.items() for name in names}
    except ImportError as problem:
        raise InvalidInput(
            f"cannot use the trainer engine titan: {problem}; install torchtitan, on a machine with a GPU, with "
            f"`{INSTALL}`",
            code="trainer.titan_missing",
        ) from problem
    return SimpleNamespace(**parts)


def unsupported_by_titan(kind: str, cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot train a {kind} with the trainer engine titan: {cause}; use a dense Qwen3, or the backend fsdp",
        code="trainer.titan_unsupported",
    )
