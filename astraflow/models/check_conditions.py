"""Conditions in which a comparison over a few tokens shows what long sequences and trained weights would show."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import log
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
_EVEN = 0.9
"""Share of the largest entropy above which the logits of a model are nearly even. Trained weights are not enlarged:
through all layers of a real model rounding would grow to 0.01 nats."""


@contextmanager
def check_conditions(model: PreTrainedModel, device: torch.device) -> Iterator[None]:
    """Gives a model short spans, no embedding of zeros and, in float32, large results of linear layers where those of
    its own are small, without a change of weights. device: of the computation."""
    is_exact = next(model.parameters()).dtype == torch.float32
    factor = _ENLARGEMENT if is_exact and _is_nearly_even(model, device) else 1.0
    padding = model.get_input_embeddings().register_forward_hook(_without_zeros)
    try:
        with _short_spans(model), _enlarged(model, factor):
            yield
    finally:
        padding.remove()


def _without_zeros(_layer: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
    """Fills rows of zeros, as new models have for padding: all keys would have equal scores for them, of which a layer
    with sparse attention chooses others in a longer sequence."""
    return embedded + (embedded == 0).all(-1, keepdim=True)


@torch.no_grad()
def _is_nearly_even(model: PreTrainedModel, device: torch.device) -> bool:
    """Returns whether the model predicts all tokens nearly alike, as before any training."""
    ids = torch.arange(8, device=device)[None] % model.config.get_text_config().vocab_size
    logs = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    entropy = -(logs.exp() * logs).sum(-1).mean()
    return float(entropy) > _EVEN * log(logs.shape[-1])


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
