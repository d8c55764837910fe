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
    position_ids: Tensor,
    attention_mask: Tensor | None,
    cache: Any = None,
) -> Tensor:
    """Run the decoder without its head: `[rows, width]` ids -> `[rows, width, hidden]`.

    attention_mask: bool, broadcastable to `[rows, heads, width, keys]`, True where a token may look; None is causal.
    cache: has `update(keys, values, layer, ...)`, transformers' cache protocol; None keeps nothing.
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
    logits: Tensor = head(hidden.flatten(0, 1)[places])
    return logits.float()


def check_head(model: PreTrainedModel) -> None:
    """Raises: InvalidInput for a model that does more than `head(hidden)` to get its logits (soft caps, scales).

    `logits_at` would be wrong for it, silently; one forward over three tokens at start-up makes it loud.
    """
    device = next(model.parameters()).device
    ids = torch.tensor([[0, 1, 2]], device=device)
    with torch.inference_mode():
        expected = model(input_ids=ids, use_cache=False).logits[0].float()
        hidden = hidden_states(model, ids, position_ids=torch.arange(3, device=device)[None], attention_mask=None)
        found = logits_at(model, hidden, torch.arange(3, device=device))
    gap = float((expected - found).abs().max())
    if gap > _HEAD_TOLERANCE * max(1.0, float(expected.abs().max())):
        raise InvalidInput(
            f"{type(model).__name__} does more than one linear layer between its last hidden state and its logits "
            f"(they differ by {gap:.3g}); such models are not supported by the local engine and trainer"
        )


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What the eager attention wants to add to its scores: 0 where a token may look, the lowest number elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
