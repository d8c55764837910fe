"""Attention masks of rows whose tokens have positions of their own, as decoders of transformers take them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.models.causal import attention_window

_FULL, _WINDOW, _CHUNKS = "full_attention", "sliding_attention", "chunked_attention"
_UNMASKED: dict[str, None] = {"linear_attention": None, "conv": None}
"""Types of layers, in configurations of transformers, that have no attention."""
_SPANS = ("sliding_window", "attention_chunk_size", "floor_scale")
"""Names of values of configurations and layers, in tokens, from which on a layer computes something else."""
_SHORT_SPAN = 3


def has_states(model: PreTrainedModel) -> bool:
    """Returns whether layers have states that each token changes, so that padding is not ignored."""
    types = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    return bool(model._is_stateful or types - {_FULL, _WINDOW, _CHUNKS})


def ragged_masks(model: PreTrainedModel, positions: Tensor, keys: int) -> Any:
    """Returns the masks of tokens at `positions` `[rows, width]` that attend to the tokens of their rows up to
    themselves, among the first `keys`: one mask, or one for each type of layer."""
    others = torch.arange(keys, device=positions.device)
    distances = positions[..., None] - others
    masks = {_FULL: (distances >= 0)[:, None]}
    config = model.config.get_text_config()
    types = getattr(config, "layer_types", None)
    if (window := attention_window(model)) is not None:
        masks[_WINDOW] = masks[_FULL] & (distances < window)[:, None]
    if types is not None and _CHUNKS in types:
        chunk = config.attention_chunk_size
        masks[_CHUNKS] = masks[_FULL] & (positions[..., None] // chunk == others // chunk)[:, None]
    if model.config._attn_implementation == "eager":
        masks = {name: _additive(mask, next(model.parameters()).dtype) for name, mask in masks.items()}
    if len(masks) == 1 or types is None:
        return masks.get(_WINDOW, masks[_FULL])
    return {**masks, **_UNMASKED}


@contextmanager
def short_spans(model: PreTrainedModel) -> Iterator[None]:
    """Makes windows, chunks and other spans of layers so short that a check with few tokens shows them."""
    config = model.config.get_text_config()
    values = {name: value for name in _SPANS if isinstance(value := getattr(config, name, None), int)}
    holders: list[Any] = [config, *model.modules()]
    spans = [
        (holder, name, value)
        for holder in holders
        for name, value in values.items()
        if value > _SHORT_SPAN and getattr(holder, name, None) == value
    ]
    for holder, name, _ in spans:
        setattr(holder, name, _SHORT_SPAN)
    try:
        yield
    finally:
        for holder, name, value in spans:
            setattr(holder, name, value)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the mask that eager attention adds to its scores: 0 where a token may attend, the lowest number
    elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
