"""States of a causal decoder after some tokens, continued without changing them: for shared prompts and for sampling.

transformers' own cache layers hold the states of attention, convolutions and recurrences. They write some of them in
place, which autograd refuses and which would change a state that others continue; here all of them are assigned.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DummyLayer, LinearAttentionLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from astraflow.contract.errors import InvalidInput
from astraflow.models.causal import CACHE_ARGUMENTS, known_arguments
from astraflow.models.output_head import decoder_of

RunModel: TypeAlias = Callable[..., Tensor]
"""Runs a model with keyword arguments of its forward; returns its last hidden states, or its logits where only its own
forward computes them, `[rows, width, size]`. Nothing is cached unless an argument says so."""

_Change: TypeAlias = Callable[[Sequence[Tensor], int], Tensor]
"""Tensor from the same tensor of some caches, and the number of its dimension of rows."""


class StateCache:
    """States of a decoder after `length` tokens of each of its `rows`. Immutable: continuing it returns another one, so
    one cache can be continued several times, and gradients reach the states of those that it continues."""

    __slots__ = ("_cache", "length", "rows")

    def __init__(self, states: DynamicCache, *, rows: int, length: int) -> None:
        self._cache = states
        self.rows = rows
        """Rows of the batch; 0 before the first token."""
        self.length = length
        """Tokens of each row, padding included."""

    @classmethod
    def empty(cls, model: PreTrainedModel) -> "StateCache":
        """Returns the cache before the first token. Raises: InvalidInput for a model with states of other kinds."""
        _argument(model)
        try:
            states = _Cache(config=model.config)
        except KeyError as unknown:
            raise _unsupported(model, f"transformers has no cache of layers of type {unknown}") from unknown
        for layer in states.layers:
            if isinstance(layer, LinearAttentionLayer):
                layer.__class__ = _assigning(type(layer))
        return cls(states, rows=0, length=0)

    def continued(
        self, model: PreTrainedModel, input_ids: Tensor, *, run: RunModel | None = None
    ) -> "tuple[Tensor, StateCache]":
        """Runs the model over further tokens: `[rows, width]` ids -> `[rows, width, size]`, and the cache after them.

        Rows may be padded at the right: no token sees those behind it; the cache is then that of the padding. With
        gradients at least two tokens: for one, some models write states in place. run: computes the result, hidden
        states or logits; None for the hidden states of the decoder. Raises: InvalidInput for a model that keeps states
        elsewhere.
        """
        rows, width = input_ids.shape
        states = copy(self._cache)
        states.layers = [_copied(layer) for layer in states.layers]
        for layer in states.layers if width == 1 else ():
            if isinstance(layer, LinearAttentionLayer):
                _copy_states(layer)
        positions = torch.arange(self.length, self.length + width, device=input_ids.device).expand(rows, -1)
        known = {_argument(model): states, **known_arguments(model, position_ids=positions)}
        result = (run or _run_decoder(model))(input_ids=input_ids, use_cache=True, **known)
        if not all(isinstance(layer, DummyLayer) or _tensors([layer]) for layer in states.layers):
            raise _unsupported(model, "it keeps states elsewhere than in the cache")
        return result, StateCache(states, rows=rows, length=self.length + width)

    def repeated(self, count: int) -> "StateCache":
        """Returns the cache with each row `count` times in succession, without copying a single row."""

        def change(tensors: Sequence[Tensor], dim: int) -> Tensor:
            sizes = [-1] * (tensors[0].ndim + 1)
            sizes[dim + 1] = count
            return tensors[0].unsqueeze(dim + 1).expand(sizes).flatten(dim, dim + 1)

        return StateCache(_combined([self._cache], change), rows=self.rows * count, length=self.length)

    def selected(self, rows: Tensor) -> "StateCache":
        """Returns the cache of some rows (int64 `[n]`), in this order, each as often as it is named."""
        if self.rows == 1:
            return self.repeated(len(rows))
        states = _combined([self._cache], lambda tensors, dim: tensors[0].index_select(dim, rows))
        return StateCache(states, rows=len(rows), length=self.length)

    @staticmethod
    def joined(caches: "Sequence[StateCache]") -> "StateCache":
        """Returns one cache with the rows of several that have the same length.

        Raises: InvalidInput when their lengths differ.
        """
        if len({cache.length for cache in caches}) != 1:
            raise InvalidInput(
                f"cannot join caches of {', '.join(str(cache.length) for cache in caches)} tokens: rows of a cache "
                "have one length; join caches of equal length",
                code="model.caches_differ",
            )
        states = _combined([cache._cache for cache in caches], lambda tensors, dim: torch.cat(list(tensors), dim))
        return StateCache(states, rows=sum(cache.rows for cache in caches), length=caches[0].length)


class _Cache(DynamicCache):
    """Cache whose layers give their whole convolution states: for one token most models would write them in place."""

    def is_recording_past(self, layer_idx: int) -> bool:
        """Returns true: states must not be written in place."""
        return True


class _AssigningLayer(LinearAttentionLayer):
    """Mixin: assigns the states of convolutions and recurrences instead of copying into them."""

    def update_conv_state(
        self: Any, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        """Keeps the last inputs of a convolution `[rows, channels, width]`. Returns them with those before."""
        if not self.is_conv_states_initialized[state_idx]:
            self.dtype, self.device = conv_states.dtype, conv_states.device
            self.conv_kernel_size[state_idx] = conv_kernel_size or conv_states.shape[-1]
            self.is_conv_states_initialized[state_idx] = True
        size = self.conv_kernel_size[state_idx]
        if self.has_previous_state[state_idx]:
            conv_states = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        elif conv_states.shape[-1] < size:
            conv_states = pad(conv_states, (size - conv_states.shape[-1], 0))
        self.has_previous_state[state_idx] = True
        self.conv_states[state_idx] = conv_states[..., -size:]
        return conv_states

    def update_recurrent_state(self: Any, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Keeps the state of a recurrence. Returns it."""
        self.is_recurrent_states_initialized[state_idx] = True
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


@cache
def _assigning(kind: Any) -> Any:
    return type(kind.__name__, (_AssigningLayer, kind), {})


def _copy_states(layer: Any) -> None:
    """Copies the states of a layer: for one token some models write them in place, without the cache."""
    for states in (layer.conv_states, layer.recurrent_states):
        for index, state in states.items():
            states[index] = state if state is None else state.clone(memory_format=torch.contiguous_format)


def recompute_with_states(model: PreTrainedModel) -> None:
    """Makes the activation checkpoints of a model, which must be on, recompute its blocks from the states before them.

    transformers computes checkpointed blocks without a cache, because a second computation would extend it again.
    """
    blocks: list[Any] = [block for block in model.modules() if isinstance(block, GradientCheckpointingLayer)]
    for block in blocks:
        written = {module.layer_idx for module in block.modules() if hasattr(module, "layer_idx")}
        block._can_checkpoint_with_cache = True
        block._gradient_checkpointing_func = partial(_checkpointed, block._gradient_checkpointing_func, written)


def _checkpointed(checkpoint: Any, written: set[int], run: partial[Any], *args: Any) -> Any:
    """Runs a block (`run`) under a checkpoint. written: layers of the cache that belong to the block."""
    name = next((name for name in CACHE_ARGUMENTS if isinstance(run.keywords.get(name), _Cache)), None)
    if name is None:
        return checkpoint(run, *args)
    before = copy(run.keywords[name])  # without the states of other blocks, which it would keep until the backward pass
    before.layers = [_copied(layer) if index in written else DummyLayer() for index, layer in enumerate(before.layers)]
    first = [run]
    again = partial(run.func, *run.args, **{**run.keywords, name: None})

    def compute(*args: Any) -> Any:
        if first:
            return first.pop()(*args)
        states = copy(before)
        states.layers = [_copied(layer) for layer in before.layers]
        return again(*args, **{name: states})

    return checkpoint(compute, *args)


def _argument(model: PreTrainedModel) -> str:
    """Returns the name of the decoder's argument for its cache. Raises: InvalidInput without one."""
    name = next(iter(known_arguments(model, **dict.fromkeys(CACHE_ARGUMENTS))), None)
    kind: Any = type(model)
    if name is None or not kind._supports_default_dynamic_cache():
        raise _unsupported(model, "transformers has no dynamic cache for it")
    return name


def _run_decoder(model: PreTrainedModel) -> RunModel:
    def run(**arguments: Any) -> Tensor:
        hidden: Tensor = decoder_of(model)(**arguments).last_hidden_state
        return hidden

    return run


def _unsupported(model: PreTrainedModel, cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot continue the states of a {type(model).__name__}: {cause}; compute its sequences whole",
        code="model.unsupported_cache",
    )


def _combined(caches: Sequence[DynamicCache], change: _Change) -> DynamicCache:
    """Returns a cache of its own whose tensors are changed."""
    states = copy(caches[0])
    states.layers = [
        _combined_layer(layers, change) for layers in zip(*(cache.layers for cache in caches), strict=True)
    ]
    return states


def _copied(layer: Any) -> Any:
    """Returns a layer of its own with the same tensors."""
    return _combined_layer([layer], lambda tensors, _: tensors[0])


def _combined_layer(layers: Sequence[Any], change: _Change) -> Any:
    layer = copy(layers[0])
    for name in vars(layer):
        dim = 1 if name == "indexer_position_ids" else 0
        setattr(layer, name, _combined_value([vars(other)[name] for other in layers], change, dim))
    return layer


def _combined_value(values: Sequence[Any], change: _Change, dim: int) -> Any:
    first = values[0]
    if isinstance(first, Tensor) and first.ndim > 1:  # others are sizes
        return change(values, dim)
    if isinstance(first, dict):
        return {key: _combined_value([value[key] for value in values], change, dim) for key in first}
    return first


def _tensors(layers: Sequence[Any]) -> list[Tensor]:
    """Returns the states of layers."""
    tensors: list[Tensor] = []

    def collect(values: Sequence[Tensor], _: int) -> Tensor:
        tensors.append(values[0])
        return values[0]

    for layer in layers:
        _combined_layer([layer], collect)
    return tensors
