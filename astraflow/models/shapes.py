"""Shapes of models: numbers of parameters and bytes follow from them without loading a model. Imports no torch."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.models.state_shapes import StateShape, delta_rule, state_values
from astraflow.models.tokenizers import CHAR_VOCAB_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder with gated feed-forward layers: Qwen2, Qwen3, Qwen3.5, Llama, GPT-OSS, Falcon-H1, LFM2."""

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

    shared_intermediate: int = 0
    """Width of the expert that computes every token; 0: none."""
    has_output_gate: bool = False
    """Attention has a gate as wide as the queries, as in Qwen3.5."""
    has_biases_and_sinks: bool = False
    """Output of attention, router and experts have biases, and heads have sinks, as in GPT-OSS."""
    state: StateShape | None = None
    """Part of a layer with a recurrent state; None: no layer has one."""
    state_layers: int = 0
    """Layers with such a part."""
    has_attention_beside_state: bool = False
    """Layers with a state have attention, too, as in Falcon-H1; otherwise they have the state in its place."""
    architecture: str = field(default="", compare=False)
    """Class of transformers; empty if unknown."""
    counted_parameters: int = 0
    """Parameters of a model of another family, counted from its configuration; 0: they follow from the sizes."""

    @property
    def attention_layers(self) -> int:
        """Layers with keys and values."""
        return self.layers if self.has_attention_beside_state else self.layers - self.state_layers

    @property
    def attention_parameters(self) -> int:
        """Parameters of the attention of a layer."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        products = self.hidden * (2 * queries + 2 * keys + (queries if self.has_output_gate else 0))
        biases = queries + 2 * keys if self.has_attention_bias else 0
        if self.has_biases_and_sinks:
            biases += self.hidden + self.heads
        return products + biases + (2 * self.head if self.has_head_norms else 0)

    @property
    def feed_forward_parameters(self) -> int:
        """Parameters of the feed-forward part of a layer, and of the two norms of a layer."""
        experts = 3 * self.hidden * self.intermediate * max(1, self.experts) + self.hidden * self.experts
        if self.has_biases_and_sinks:
            experts += self.experts * (2 * self.intermediate + self.hidden + 1)
        shared = 3 * self.hidden * self.shared_intermediate + self.hidden if self.shared_intermediate else 0
        return experts + shared + 2 * self.hidden

    @property
    def block_parameters(self) -> int:
        """Parameters of the largest block."""
        if self.counted_parameters:
            return -(-(self.counted_parameters - self.outer_parameters) // self.layers)
        attention, state = self.attention_parameters, self.state.parameters if self.state else 0
        mixer = (
            attention + state
            if self.has_attention_beside_state
            else max(attention * bool(self.attention_layers), state)
        )
        return mixer + self.feed_forward_parameters

    @property
    def outer_parameters(self) -> int:
        """Parameters outside of the blocks: embedding, output head and last norm."""
        return self.vocabulary * self.hidden * (1 if self.is_tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the model; a tied head counts once."""
        if self.counted_parameters:
            return self.counted_parameters
        mixers = self.attention_layers * self.attention_parameters
        mixers += self.state_layers * (self.state.parameters if self.state else 0)
        return mixers + self.layers * self.feed_forward_parameters + self.outer_parameters

    @property
    def cache_elements(self) -> int:
        """Elements of the key-value cache for one token."""
        return 2 * self.attention_layers * self.kv_heads * self.head

    @property
    def state_bytes(self) -> int:
        """Recurrent states of one sequence, whatever its length, as engines keep them: states in float32, inputs of
        convolutions in 16 bits. Bytes."""
        if self.state is None:
            return 0
        return self.state_layers * (4 * self.state.state_elements + 2 * self.state.convolution_elements)

    @property
    def adapter_widths(self) -> dict[str, int]:
        """Inputs plus outputs, in all layers together, of the linear layers that can have adapters, by name."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        widths: Counter[str] = Counter()
        for name, outputs in (("q_proj", queries * (1 + self.has_output_gate)), ("k_proj", keys), ("v_proj", keys)):
            widths[name] += self.attention_layers * (self.hidden + outputs)
        widths["o_proj"] += self.attention_layers * (queries + self.hidden)
        for name, inputs, outputs in self.state.projections if self.state else ():
            widths[name] += self.state_layers * (inputs + outputs)
        if not self.experts:
            width = self.layers * (self.hidden + self.intermediate)
            widths.update(dict.fromkeys(("gate_proj", "up_proj", "down_proj"), width))
        return dict(widths)

    def adapter_parameters(self, rank: int, targets: tuple[str, ...] | None) -> int:
        """Returns the parameters of low-rank adapters; targets: names of the adapted layers, None for all of them."""
        widths = self.adapter_widths
        chosen = widths if targets is None else {name: widths.get(name, 0) for name in targets}
        return rank * sum(chosen.values())


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
        "architecture": "Qwen3MoeForCausalLM" if "experts" in other else "Qwen3ForCausalLM",
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
        architecture="Qwen2ForCausalLM",
        **values,
    )


def _qwen3_5(hidden: int, layers: int, kv_heads: int, intermediate: int, **other: Any) -> ModelShape:
    state = delta_rule(hidden, key_heads=16, value_heads=32, key_head=128, value_head=128, kernel=4)
    values: dict[str, Any] = {"is_tied": False, "has_head_norms": True, "has_output_gate": True, **other}
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=16,
        kv_heads=kv_heads,
        head=256,
        intermediate=intermediate,
        vocabulary=248_320,
        context=262_144,
        state=state,
        state_layers=layers * 3 // 4,
        architecture="Qwen3_5MoeForConditionalGeneration" if "experts" in other else "Qwen3_5ForConditionalGeneration",
        **values,
    )


_LLAMA_3_1_8B = ModelShape(
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head=128,
    intermediate=14_336,
    vocabulary=128_256,
    is_tied=False,
    context=131_072,
    architecture="LlamaForCausalLM",
)
_GPT_OSS_20B = ModelShape(
    hidden=2880,
    layers=24,
    heads=64,
    kv_heads=8,
    head=64,
    intermediate=2880,
    vocabulary=201_088,
    is_tied=False,
    context=131_072,
    experts=32,
    active_experts=4,
    has_attention_bias=True,
    has_biases_and_sinks=True,
    architecture="GptOssForCausalLM",
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
        KnownModel(hub="Qwen/Qwen3.5-4B", shape=_qwen3_5(2560, 32, 4, 9216, is_tied=True)),
        KnownModel(hub="Qwen/Qwen3.5-9B", shape=_qwen3_5(4096, 32, 4, 12_288)),
        KnownModel(
            hub="Qwen/Qwen3.5-35B-A3B",
            shape=_qwen3_5(2048, 40, 2, 512, experts=256, active_experts=8, shared_intermediate=512),
        ),
        KnownModel(hub="meta-llama/Llama-3.1-8B-Instruct", shape=_LLAMA_3_1_8B),
        KnownModel(hub="openai/gpt-oss-20b", shape=_GPT_OSS_20B),
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
        whole = json.loads(file.read_text())
        config = whole.get("text_config", whole)
        shape = _shape_of({**whole, **config})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InvalidInput(
            f"cannot read the sizes of the model in {str(file)!r}: {problem!r}; copy the model's whole config.json",
            code="model.no_sizes",
        ) from problem
    return (
        shape
        if config.get("model_type") in _KINDS
        else replace(shape, counted_parameters=_counted_parameters(file.parent))
    )


def _shape_of(config: Mapping[str, Any]) -> ModelShape:
    heads, kind = config["num_attention_heads"], str(config.get("model_type"))
    experts = next((count for name in _EXPERTS if (count := config.get(name))), 0)
    shared = config.get("shared_expert_intermediate_size") or config.get("moe_shared_expert_intermediate_size")
    return ModelShape(
        hidden=config["hidden_size"],
        layers=config.get("num_hidden_layers") or len(config["layers_block_type"]),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=(experts and config.get("moe_intermediate_size")) or config["intermediate_size"],
        vocabulary=config["vocab_size"],
        is_tied=bool(config.get("tie_word_embeddings")),
        context=config["max_position_embeddings"],
        experts=experts,
        active_experts=(experts and config.get("num_experts_per_tok")) or 0,
        shared_intermediate=shared
        or (experts and (config.get("n_shared_experts") or 0) * config.get("moe_intermediate_size", 0)),
        has_attention_bias=kind.startswith("qwen2") or bool(config.get("attention_bias")),
        has_head_norms=kind.startswith(("qwen3", "lfm2")),
        has_biases_and_sinks=kind == "gpt_oss",
        architecture=next(iter(config.get("architectures") or ()), ""),
        **state_values(config),
    )


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in configurations."""
_KINDS = {
    *("llama", "mistral", "ministral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text"),
    *("gpt_oss", "falcon_h1", "lfm2"),
}
"""Families whose parameters follow from the sizes."""


def _counted_parameters(folder: Path) -> int:
    """Returns the parameters of the model that transformers builds from a folder's configuration, without memory for
    them; 0 where transformers is not installed or does not know the family."""
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        return 0
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError, KeyError):  # `doctor` and the trainer's start say why
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


def _tiny_shape(spec: Mapping[str, Any]) -> ModelShape:

    from astraflow.models.tiny_options import TinyModelOptions, family_values

    options = TinyModelOptions.parse({key: value for key, value in spec.items() if key != "kind"}, where="model")
    kind, values = family_values(options)
    return _shape_of(
        {
            "model_type": kind,
            "hidden_size": options.hidden_size,
            "num_hidden_layers": options.layers,
            "num_attention_heads": options.heads,
            "num_key_value_heads": options.key_value_heads,
            "intermediate_size": options.intermediate_size,
            "vocab_size": CHAR_VOCAB_SIZE,
            "tie_word_embeddings": True,
            "max_position_embeddings": options.max_context_tokens,
            **values,
        }
    )
