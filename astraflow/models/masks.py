"""Attention masks of rows whose tokens have positions of their own, as decoders of transformers take them."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.models.causal import attention_window

_FULL, _WINDOW, _CHUNKS = "full_attention", "sliding_attention", "chunked_attention"
_STATES = ("linear_attention", "conv")
"""Types of layers, in configurations of transformers, that have states instead of attention."""


def has_states(model: PreTrainedModel) -> bool:
    """Returns whether layers have states that each token changes, so that padding is not ignored."""
    types = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    return bool(model._is_stateful or types - {_FULL, _WINDOW, _CHUNKS})


class RaggedMasks:
    """Masks for a model, whose configuration is read once."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        types = getattr(config, "layer_types", None)
        self._window = attention_window(model)
        self._chunk: int | None = config.attention_chunk_size if types is not None and _CHUNKS in types else None
        self._has_types = types is not None
        is_eager = model.config._attn_implementation == "eager"
        self._additive_dtype = next(model.parameters()).dtype if is_eager else None

    def of(self, positions: Tensor, keys: int) -> Any:
        """Returns the masks of tokens at `positions` `[rows, width]` that attend to the tokens of their rows up to
        themselves, among the first `keys`: one mask, or one for each type of layer."""
        others = torch.arange(keys, device=positions.device)
        masks = self._attention(positions[..., None] >= others, positions, others)
        if len(masks) == 1 or not self._has_types:
            return masks.get(_WINDOW, masks[_FULL])
        return {**masks, **dict.fromkeys(_STATES)}

    def padded(self, positions: Tensor) -> dict[str, Tensor]:
        """Returns the masks of rows that are padded at the left, where `positions` `[rows, width]` are negative."""
        is_token = positions >= 0
        order = torch.arange(positions.shape[1], device=positions.device)
        visible = (order[:, None] >= order) & (
            is_token[:, None] | ~is_token[..., None]
        )  # padding sees itself, so no NaNs
        return {**self._attention(visible, positions, positions), **dict.fromkeys(_STATES, is_token)}

    def _attention(self, visible: Tensor, positions: Tensor, others: Tensor) -> dict[str, Tensor]:
        """Returns the masks of layers with attention. visible: `[rows, width, keys]`; others: positions of the keys."""
        keys = others[..., None, :]
        masks = {_FULL: visible[:, None]}
        if self._window is not None:
            masks[_WINDOW] = (visible & (positions[..., None] - keys < self._window))[:, None]
        if self._chunk is not None:
            masks[_CHUNKS] = (visible & (positions[..., None] // self._chunk == keys // self._chunk))[:, None]
        if self._additive_dtype is not None:
            masks = {name: _additive(mask, self._additive_dtype) for name, mask in masks.items()}
        return masks


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the mask that eager attention adds to its scores: 0 where a token may attend, the lowest number
    elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
