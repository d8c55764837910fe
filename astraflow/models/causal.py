"""Operations on causal models that trainer and local engine share: load, list weights, run, compute logits."""

import inspect
from functools import cache as memoized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar

from astraflow.contract.errors import InvalidInput
from astraflow.models.output_head import HeadForm, decoder_of, has_known_head

CACHE_ARGUMENTS = ("past_key_values", "cache_params")
"""Names that decoders of transformers have for their cache."""
_SLIDING = "sliding_attention"
"""Type of the layers with a window, in configurations of transformers."""


def load_model(folder: Path, *, attention: str, config: PretrainedConfig | None = None) -> PreTrainedModel:
    """Loads the model in `folder` (Hugging Face format) with float32 weights. `attention`: `sdpa` or `eager`. config:
    None for that of the folder."""
    disable_progress_bar()
    config = config or AutoConfig.from_pretrained(folder, local_files_only=True)
    model: PreTrainedModel = model_builder(config).from_pretrained(
        folder,
        config=config,
        dtype="float32",
        attn_implementation=requested_attention(attention),
        local_files_only=True,
    )
    freeze_unused(model)
    return model


def model_builder(config: PretrainedConfig) -> Any:
    """Returns transformers' builder of the model of a configuration: of the whole model where the text model is a part
    of one that sees images, so that its tensors have the names of the checkpoint, and an engine gets all of them."""
    whole = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config.model_type)
    return AutoModelForImageTextToText if whole in (config.architectures or ()) else AutoModelForCausalLM


def freeze_unused(model: PreTrainedModel) -> None:
    """Freezes the parameters that text is not computed with, such as those of a vision tower; published they are."""
    used = {id(weight) for part in (decoder_of(model), model.get_output_embeddings()) for weight in part.parameters()}
    for weight in model.parameters():
        if id(weight) not in used:
            weight.requires_grad = False


def requested_attention(attention: str) -> str | None:
    """Returns the attention to request of transformers: None for `sdpa`, which is its default wherever a family has it;
    families with sinks or bounded scores have only `eager`."""
    return None if attention == "sdpa" else attention


def named_weights(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Returns the parameters by `state_dict` name, in the model's own order; tied parameters once, under their first
    name."""
    return dict(model.named_parameters())


def kept_buffers(model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the buffers that a checkpoint keeps, by `state_dict` name, such as the biases of routers: weights that no
    gradient changes, in an element type of their own."""
    kept = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def embedding_names(model: PreTrainedModel) -> frozenset[str]:
    """Returns the names in `named_weights` of the embeddings and of the output head."""
    weights = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    return frozenset(
        name for name, parameter in named_weights(model).items() if any(parameter is weight for weight in weights)
    )


def head_sizes(config: PretrainedConfig) -> list[int]:
    """Returns the size of an attention head in each layer; layers differ in Gemma 4."""
    layers: Any = config.per_layer_config
    return [getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads for layer in layers]


def attention_window(model: PreTrainedModel) -> int | None:
    """Returns the number of tokens, itself included, that a token attends to in sliding-window layers; None when the
    model has none."""
    config = model.config.get_text_config()
    window: int | None = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    return window if types is None or _SLIDING in types else None


def known_arguments(model: PreTrainedModel, **arguments: Any) -> dict[str, Any]:
    """Returns those of the arguments that the decoder has. Not all decoders count positions from the cache's length."""
    kind: Any = type(decoder_of(model))
    return {name: value for name, value in arguments.items() if name in _parameters(kind)}


def blocks_of(model: PreTrainedModel) -> nn.ModuleList:
    """Returns the blocks of the decoder, in order: `layers` in today's models, else the largest list of modules."""
    decoder = decoder_of(model)
    blocks = getattr(decoder, "layers", None)
    if isinstance(blocks, nn.ModuleList):
        return blocks
    lists = [module for module in decoder.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=lambda blocks: sum(weight.numel() for weight in blocks.parameters()))


def hidden_states(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    position_ids: Tensor | None = None,
    masks: Any = None,
    cache: Any = None,
) -> Tensor:
    """Runs the decoder without its head: `[rows, width]` ids -> `[rows, width, hidden]`.

    position_ids: `[rows, width]`; None counts from 0. masks: as the decoder takes them (`RaggedMasks`); None: causal,
    and in windows or chunks where a layer has them, which is faster. cache: transformers' cache protocol
    (`update(keys, values, layer)` and its sizes); None stores nothing.
    """
    arguments = known_arguments(
        model, position_ids=position_ids, attention_mask=masks, **dict.fromkeys(CACHE_ARGUMENTS, cache)
    )
    outputs = decoder_of(model)(input_ids=input_ids, use_cache=cache is not None, **arguments)
    hidden: Tensor = outputs.last_hidden_state
    return hidden


def logits_at(model: PreTrainedModel, hidden: Tensor, positions: Tensor, *, form: HeadForm | None = None) -> Tensor:
    """Returns float32 logits `[n, vocabulary]` at `positions` only (int64 `[n]`, into the flattened `[rows * width]`).

    form: of the head; None reads it from the configuration.
    Other positions cost nothing: most tokens are prompts, and the head is most of the arithmetic of a small model.
    """
    head = model.get_output_embeddings()
    form = HeadForm.of(model.config) if form is None else form
    return form.logits(head(hidden.flatten(0, 1).index_select(0, positions)))


def cast(model: PreTrainedModel, *, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Moves the model to `device`, and its parameters (only) to `dtype`: rotary frequencies must stay in float32.

    The routers of mixture-of-experts models compute in float32.
    """
    nn.Module.to(model, device=device)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    compute_routers_in_float32(model)
    return model


def check_supported(model: PreTrainedModel) -> None:
    """Checks that the attention of a model is full, or full in a window, and that `logits_at` are its logits.

    Raises: InvalidInput. An engine would silently compute wrong values for other models.
    """
    kind = type(model).__name__
    if partial := partial_layers(model):
        raise InvalidInput(
            f"cannot run a {kind}: it has layers of type {', '.join(partial)}, and this engine computes only full "
            "attention and sliding windows; use a model whose layers are of these types, or another engine",
            code="model.unsupported_attention",
        )
    if not has_known_head(model, model.device):
        raise InvalidInput(
            f"cannot run a {kind}: its logits are not a linear layer of its last hidden state, scaled and bounded as "
            "its configuration states; use a model with such a head, or another engine",
            code="model.unsupported_head",
        )


def partial_layers(model: PreTrainedModel) -> list[str]:
    """Returns the types of a model's layers that are neither full attention nor a sliding window, as its configuration
    names them. A short sequence would not show all of them."""
    types = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention", _SLIDING}
    if not types and model._is_stateful:
        types = {"recurrent state"}  # as in Mamba, whose configuration does not list its layers
    return sorted(types)


@memoized
def _parameters(kind: Any) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)


_SUFFIX = "TopKRouter"
"""End of the names of transformers' classes that score experts and choose the best."""


class Float32Router(nn.Module):
    """Mixin: computes a router with its weights and its input upcast to float32."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns float32 scores."""
        weights = dict(self.named_parameters())
        if all(weight.dtype == torch.float32 for weight in weights.values()):
            return super().forward(*(arg.float() if torch.is_floating_point(arg) else arg for arg in args), **kwargs)
        return functional_call(self, {name: weight.float() for name, weight in weights.items()}, args, kwargs)


def compute_routers_in_float32(model: nn.Module) -> None:
    """Makes the routers of a model compute in float32; a model without experts stays as it is."""
    for module in model.modules():
        kind: Any = type(module)
        if kind.__name__.endswith(_SUFFIX) and not isinstance(module, Float32Router):
            module.__class__ = _float32_class(kind)  # keeps names, weights, hooks, and works after a deepcopy


@memoized
def _float32_class(kind: Any) -> Any:
    return type(kind.__name__, (Float32Router, kind), {})
