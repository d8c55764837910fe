"""Conditions in which a comparison over a few tokens shows what long sequences and trained weights would show."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from astraflow.models.output_head import decoder_of

_SPANS = ("sliding_window", "attention_chunk_size", "floor_scale")
"""Names of values of configurations and layers, in tokens, from which on a layer computes something else."""
_SHORT_SPAN = 3
_ENLARGEMENT = 3.0
"""Factor of the results of linear layers in float32: with the small weights of a new model, attention would be nearly
even, and no bound would show. Element types of fewer bits would lose too many of them."""


@contextmanager
def check_conditions(model: PreTrainedModel) -> Iterator[None]:
    """Gives a model short spans and, in float32, large results of linear layers, without a change of weights."""
    factor = _ENLARGEMENT if next(model.parameters()).dtype == torch.float32 else 1.0
    with _short_spans(model), _enlarged(model, factor):
        yield


@contextmanager
def _short_spans(model: PreTrainedModel) -> Iterator[None]:
    """Shortens windows, chunks and other spans of layers that have the value of the configuration."""
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


@contextmanager
def _enlarged(model: PreTrainedModel, factor: float) -> Iterator[None]:
    """Multiplies the results of the decoder's linear layers."""
    layers = [module for module in decoder_of(model).modules() if isinstance(module, nn.Linear)] if factor != 1 else []

    def enlarge(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
        return output * factor if isinstance(output, Tensor) else output  # a router of Llama 4 returns two tensors

    hooks = [layer.register_forward_hook(enlarge) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
