"""What the trainer and the local engine both do with a causal model: find its weights, run it, read its logits."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from astraflow.contract.errors import InvalidInput

_HEAD_TOLERANCE = 1e-3


def load_model(folder: Path, *, attention: str) -> PreTrainedModel:
    """The model in `folder` (Hugging Face format) with its weights in float32. `attention`: `sdpa` or `eager`."""
    disable_progress_bar()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", attn_implementation=attention, local_files_only=True
    )
    return model


def named_weights(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The parameters by their `state_dict` names, in the model's own order; tied ones once, under their first name."""
    return dict(model.named_parameters())


def hidden_states(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    position_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    cache: Any = None,
) -> Tensor:
    """Run the decoder without its head: `[rows, width]` ids -> `[rows, width, hidden]`.

    position_ids: `[rows, width]`; None counts from 0. attention_mask: bool, broadcastable to `[rows, heads, width,
    keys]`, True where a token may look; None is causal, which is faster. cache: transformers' cache protocol
    (`update(keys, values, layer)` and its sizes); None keeps nothing.
    """
    if attention_mask is not None and model.config._attn_implementation == "eager":
        attention_mask = _additive(attention_mask, next(model.parameters()).dtype)
    outputs = model.get_decoder()(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=attention_mask,
        past_key_values=cache,
        use_cache=cache is not None,
    )
    hidden: Tensor = outputs.last_hidden_state
    return hidden


def logits_at(model: PreTrainedModel, hidden: Tensor, places: Tensor) -> Tensor:
    """Float32 logits `[n, vocabulary]` at `places` (int64 `[n]`, into the flattened `[rows * width]`) and nowhere else.

    Prompts are most of the tokens and the head most of the arithmetic of a small model: only asked places pay for it.
    """
    head = model.get_output_embeddings()
    logits: Tensor = head(hidden.flatten(0, 1).index_select(0, places))
    return logits.float()


def cast(model: PreTrainedModel, *, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Move the model, and its parameters (only) to `dtype`: rotary frequencies must stay in float32."""
    nn.Module.to(model, device=device)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def check_supported(model: PreTrainedModel) -> None:
    """Raises: InvalidInput for a model whose attention is not full or whose logits are not `head(hidden)`.

    Trainer and engine would be wrong for it, silently; one forward over three tokens at start-up makes it loud.
    """
    config, kind = model.config.get_text_config(), type(model).__name__
    layer_types = set(getattr(config, "layer_types", None) or ())
    if layer_types - {"full_attention"} or (not layer_types and getattr(config, "sliding_window", None)):
        raise InvalidInput(
            f"{kind} has layers that do not attend to everything: the local engine and trainer cannot run it"
        )
    ids = torch.tensor([[0, 1, 2]], device=model.device)
    with torch.inference_mode():
        expected = model(input_ids=ids, use_cache=False).logits[0].float()
        found = logits_at(model, hidden_states(model, ids), torch.arange(3, device=model.device))
    gap = float((expected - found).abs().max())
    if not gap <= _HEAD_TOLERANCE * max(1.0, float(expected.abs().max())):
        raise InvalidInput(
            f"{kind} does more than one linear layer between its last hidden state and its logits (they differ by "
            f"{gap:.3g}): the local engine and trainer cannot run it"
        )


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What the eager attention wants to add to its scores: 0 where a token may look, the lowest number elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
