"""Shapes of models: numbers of parameters and bytes follow from them without loading a model. Imports no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.models.tokenizers import CHAR_VOCAB_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder with gated feed-forward layers: Qwen2, Qwen3, Llama, and Qwen3 with experts."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    """Width of a head."""
    intermediate: int
    """Width of the feed-forward layers; with experts, of each expert."""
    vocabulary: int
    is_tied: bool
    """The output head is the embedding."""
    context: int
    """Maximum of positions. Tokens."""
    experts: int = 0
    """Experts of each layer; 0: dense."""
    active_experts: int = 0
    """Experts that compute a token."""
    has_attention_bias: bool = False
    """Queries, keys and values have a bias, as in Qwen2."""
    has_head_norms: bool = False
    """Queries and keys are normalized, as in Qwen3."""

    @property
    def block_parameters(self) -> int:
        """Parameters of a block."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        attention = self.hidden * (2 * queries + 2 * keys)
        biases = queries + 2 * keys if self.has_attention_bias else 0
        norms = 2 * self.hidden + (2 * self.head if self.has_head_norms else 0)
        feed_forward = 3 * self.hidden * self.intermediate * max(1, self.experts) + self.hidden * self.experts
        return attention + biases + norms + feed_forward

    @property
    def outer_parameters(self) -> int:
        """Parameters outside of the blocks: embedding, output head and last norm."""
        return self.vocabulary * self.hidden * (1 if self.is_tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the model; a tied head counts once."""
        return self.layers * self.block_parameters + self.outer_parameters

    @property
    def cache_elements(self) -> int:
        """Elements of the key-value cache for one token."""
        return 2 * self.layers * self.kv_heads * self.head

    @property
    def adapter_widths(self) -> dict[str, int]:
        """Inputs plus outputs of the linear layers of a block that can have adapters, by name."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        widths = {
            "q_proj": self.hidden + queries,
            "k_proj": self.hidden + keys,
            "v_proj": self.hidden + keys,
            "o_proj": queries + self.hidden,
        }
        if not self.experts:
            widths |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.hidden + self.intermediate)
        return widths

    def adapter_parameters(self, rank: int, targets: tuple[str, ...] | None) -> int:
        """Returns the parameters of low-rank adapters; targets: names of the adapted layers, None for all of them."""
        widths = self.adapter_widths
        chosen = widths if targets is None else {name: widths.get(name, 0) for name in targets}
        return self.layers * rank * sum(chosen.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A published model, for machines that do not have its folder."""

    hub: str
    """Name on the hub."""
    shape: ModelShape


def _qwen3(
    hidden: int, layers: int, heads: int, intermediate: int, *, is_tied: bool = False, **other: Any
) -> ModelShape:
    values: dict[str, Any] = {
        "kv_heads": 8,
        "head": 128,
        "vocabulary": 151_936,
        "context": 40_960,
        "has_head_norms": True,
        **other,
    }
    return ModelShape(hidden=hidden, layers=layers, heads=heads, intermediate=intermediate, is_tied=is_tied, **values)


def _qwen2_5(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, **other: Any) -> ModelShape:
    values: dict[str, Any] = {"head": 128, "vocabulary": 152_064, "is_tied": False, "context": 32_768, **other}
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=intermediate,
        has_attention_bias=True,
        **values,
    )


KNOWN_MODELS: Mapping[str, KnownModel] = {
    model.hub.rpartition("/")[2]: model
    for model in (
        KnownModel(hub="Qwen/Qwen3-0.6B", shape=_qwen3(1024, 28, 16, 3072, is_tied=True)),
        KnownModel(hub="Qwen/Qwen3-1.7B", shape=_qwen3(2048, 28, 16, 6144, is_tied=True)),
        KnownModel(hub="Qwen/Qwen3-4B", shape=_qwen3(2560, 36, 32, 9728, is_tied=True)),
        KnownModel(hub="Qwen/Qwen3-4B-Instruct-2507", shape=_qwen3(2560, 36, 32, 9728, is_tied=True, context=262_144)),
        KnownModel(hub="Qwen/Qwen3-8B", shape=_qwen3(4096, 36, 32, 12_288)),
        KnownModel(hub="Qwen/Qwen3-14B", shape=_qwen3(5120, 40, 40, 17_408)),
        KnownModel(hub="Qwen/Qwen3-32B", shape=_qwen3(5120, 64, 64, 25_600)),
        KnownModel(
            hub="Qwen/Qwen3-30B-A3B", shape=_qwen3(2048, 48, 32, 768, kv_heads=4, experts=128, active_experts=8)
        ),
        KnownModel(
            hub="Qwen/Qwen2.5-1.5B-Instruct", shape=_qwen2_5(1536, 28, 12, 2, 8960, is_tied=True, vocabulary=151_936)
        ),
        KnownModel(hub="Qwen/Qwen2.5-7B-Instruct", shape=_qwen2_5(3584, 28, 28, 4, 18_944)),
        KnownModel(hub="Qwen/Qwen2.5-14B-Instruct", shape=_qwen2_5(5120, 48, 40, 8, 13_824)),
    )
}
"""By the last part of the name on the hub, which is the usual name of the folder."""

_FETCHED = {
    "smollm2": ModelShape(
        hidden=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head=64,
        intermediate=1536,
        vocabulary=49_152,
        is_tied=True,
        context=8192,
    )
}
"""Models of `astraflow fetch`."""


def known_model(spec: Mapping[str, Any]) -> KnownModel | None:
    """Returns the published model that a spec's folder is named after; None for another name or kind."""
    return KNOWN_MODELS.get(Path(str(spec.get("path", ""))).name) if spec.get("kind") == "huggingface" else None


def model_shape(spec: Mapping[str, Any]) -> ModelShape | None:
    """Returns the shape of a model: from config.json of its folder, else of the published model with its name.

    None where neither is there, and for a simulated model. Raises: InvalidInput for a config.json without these sizes.
    """
    match spec.get("kind"):
        case "tiny":
            return _tiny_shape(spec)
        case "fetched":
            return _FETCHED.get(str(spec.get("name")))
        case "huggingface":
            config = Path(str(spec.get("path", ""))).expanduser() / "config.json"
            if config.is_file():
                return read_shape(config)
            listed_model = known_model(spec)
            return listed_model.shape if listed_model else None
    return None


def read_shape(file: Path) -> ModelShape:
    """Returns the shape in a config.json. Raises: InvalidInput when a size is missing."""
    try:
        config = json.loads(file.read_text())
        config = config.get("text_config", config)
        heads, experts = config["num_attention_heads"], config.get("num_experts") or config.get("num_local_experts")
        kind = str(config.get("model_type"))
        return ModelShape(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=(experts and config.get("moe_intermediate_size")) or config["intermediate_size"],
            vocabulary=config["vocab_size"],
            is_tied=bool(config.get("tie_word_embeddings")),
            context=config["max_position_embeddings"],
            experts=experts or 0,
            active_experts=(experts and config.get("num_experts_per_tok")) or 0,
            has_attention_bias=kind.startswith("qwen2") or bool(config.get("attention_bias")),
            has_head_norms=kind.startswith("qwen3"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InvalidInput(
            f"cannot read the sizes of the model in {str(file)!r}: {problem!r}; copy the model's whole config.json",
            code="model.no_sizes",
        ) from problem


def _tiny_shape(spec: Mapping[str, Any]) -> ModelShape:
    from astraflow.models.tiny import TinyModelOptions

    options = TinyModelOptions.parse({key: value for key, value in spec.items() if key != "kind"}, where="model")
    return ModelShape(
        hidden=options.hidden_size,
        layers=options.layers,
        heads=options.heads,
        kv_heads=options.key_value_heads,
        head=options.hidden_size // options.heads,
        intermediate=options.intermediate_size,
        vocabulary=CHAR_VOCAB_SIZE,
        is_tied=True,
        context=options.max_context_tokens,
        experts=options.experts,
        active_experts=options.experts_per_token if options.experts else 0,
        has_head_norms=True,
    )
