"""Cache with one slot for each running sequence: keys and values from the start of the slot, and recurrent states."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.raas.engines.local.prefixes import Prefix, StateName

_ROW_STEP, _WIDTH_STEP = 16, 64
"""Growth steps of the storage, in slots and tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefill:
    slots: Tensor
    sources: Tensor
    columns: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Continuation:
    slots: Tensor
    sources: Tensor
    prefixes: Sequence[Prefix]
    positions: Tensor
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decode:
    slots: Tensor
    columns: Tensor
    visible: int


class SlotCache:
    """Keys and values of all layers, `[slots, heads, width, head size]` each, and the states of convolutions and
    recurrences, `[slots, ...]` each, in transformers' cache protocol.

    Sequence i has slot i and its token j is in column j, so positions need no offsets and a slot is freed by moving
    the last slot into it. Before a forward pass, call `begin_prefill`, `begin_continuation` or `begin_decode`.
    """

    def __init__(self) -> None:
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._states: dict[StateName, Tensor] = {}
        self._rows = 0
        self._width = 0
        self._forward: _Prefill | _Continuation | _Decode

    @property
    def has_keys(self) -> bool:
        """Whether layers attend to earlier tokens."""
        return bool(self._keys)

    def reserve(self, rows: int, width: int) -> None:
        """Grows the storage to that many slots and tokens; the content stays."""
        if rows <= self._rows and width <= self._width:
            return
        self._rows = -(-rows // _ROW_STEP) * _ROW_STEP
        self._width = -(-width // _WIDTH_STEP) * _WIDTH_STEP
        for storage in (self._keys, self._values):
            storage.update({layer: self._grown(stored) for layer, stored in storage.items()})
        for name, stored in self._states.items():
            if len(stored) < self._rows:
                self._states[name] = torch.cat([stored, stored.new_zeros(self._rows - len(stored), *stored.shape[1:])])

    def begin_prefill(self, slots: Tensor, sources: Tensor, columns: Tensor | None = None) -> None:
        """Starts a forward pass over whole prompts: slot `slots[i]` receives row `sources[i]`.

        columns: columns of the tokens of each row in their order, `[rows, width]`; None from the first on."""
        self._forward = _Prefill(slots=slots, sources=sources, columns=columns)

    def begin_continuation(
        self, slots: Tensor, sources: Tensor, prefixes: Sequence[Prefix], positions: Tensor, longest: int
    ) -> None:
        """Starts a forward pass over the rest of prompts: row i, whose tokens have `positions[i]`, continues
        `prefixes[i]`, and slot `slots[i]` receives row `sources[i]`. longest: tokens of the longest prompt."""
        self._forward = _Continuation(
            slots=slots, sources=sources, prefixes=prefixes, positions=positions, longest=longest
        )

    def begin_decode(self, columns: Tensor, visible: int) -> None:
        """Starts a forward pass that writes `columns`, `[rows, width]`, of the first slots. Attention sees the first
        `visible` columns."""
        slots = torch.arange(len(columns), device=columns.device)
        self._forward = _Decode(slots=slots, columns=columns, visible=visible)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Stores the new keys and values of an attention layer; returns those that the layer attends to."""
        if layer not in self._keys:
            self._keys[layer], self._values[layer] = self._empty(keys), self._empty(values)
        stored_keys, stored_values = self._keys[layer], self._values[layer]
        match self._forward:
            case _Prefill(slots=slots, sources=sources, columns=columns):
                width = keys.shape[2]
                stored_keys[slots, :, :width] = _ordered(keys, columns)[sources]
                stored_values[slots, :, :width] = _ordered(values, columns)[sources]
                return keys, values
            case _Continuation() as forward:
                all_keys = _joined(keys, [prefix.stored.keys[layer] for prefix in forward.prefixes], forward)
                all_values = _joined(values, [prefix.stored.values[layer] for prefix in forward.prefixes], forward)
                stored_keys[forward.slots, :, : forward.longest] = all_keys[forward.sources, :, : forward.longest]
                stored_values[forward.slots, :, : forward.longest] = all_values[forward.sources, :, : forward.longest]
                return all_keys, all_values
            case _Decode(slots=slots, columns=columns, visible=visible):
                stored_keys[slots[:, None], :, columns] = keys.transpose(1, 2)
                stored_values[slots[:, None], :, columns] = values.transpose(1, 2)
                return stored_keys[: len(slots), :, :visible], stored_values[: len(slots), :, :visible]

    def move(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Copies the first `width` tokens of the slots `sources` to the slots `targets`."""
        for stored in (*self._keys.values(), *self._values.values()):
            stored[targets, :, :width] = stored[sources, :, :width]
        for state in self._states.values():
            state[targets] = state[sources]

    def copied(self, slot: int, tokens: int) -> tuple[dict[int, Tensor], dict[int, Tensor], dict[StateName, Tensor]]:
        """Returns copies of the keys and values, by layer, of the first tokens in a slot, and of its states."""
        return (
            {layer: stored[slot, :, :tokens].clone() for layer, stored in self._keys.items()},
            {layer: stored[slot, :, :tokens].clone() for layer, stored in self._values.items()},
            {name: stored[slot].clone() for name, stored in self._states.items()},
        )

    def clear(self) -> None:
        """Frees the memory."""
        self._keys, self._values, self._states, self._rows, self._width = {}, {}, {}, 0, 0

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Returns the last inputs of a convolution, `[rows, channels, width]`; None before the first token."""
        return self._state(("convolution", layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Returns the state of a recurrence, `[rows, ...]`; None before the first token."""
        return self._state(("recurrence", layer_idx, state_idx))

    def update_conv_state(
        self, inputs: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: object
    ) -> Tensor:
        """Stores the last inputs of a convolution. Returns the inputs with those before."""
        before = self.get_conv_state(layer_idx, state_idx)
        size = conv_kernel_size or inputs.shape[-1] if before is None else before.shape[-1]
        if before is None:
            inputs = torch.nn.functional.pad(inputs, (max(0, size - inputs.shape[-1]), 0))
        else:
            inputs = torch.cat([before, inputs], dim=-1)
        self._store(("convolution", layer_idx, state_idx), inputs[..., -size:])
        return inputs

    def update_recurrent_state(self, state: Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> Tensor:
        """Stores the state of a recurrence. Returns it."""
        self._store(("recurrence", layer_idx, state_idx), state)
        return state

    def is_recording_past(self, layer_idx: int) -> bool:
        """Returns False: a convolution of a single token may write its state in place."""
        return False

    def get_seq_length(self, _layer: int = 0) -> int:
        """Returns the tokens before the forward pass, for models that number positions themselves (in a prefill)."""
        return 0

    def get_query_offset(self, _layer: int = 0) -> int:
        """Returns the same as `get_seq_length`."""
        return 0

    def get_mask_sizes(self, queries: int, _layer: int = 0) -> tuple[int, int]:
        """Returns the number of keys that a prefill attends to, and their offset."""
        return queries, 0

    def _state(self, name: StateName) -> Tensor | None:
        """Returns a state before the forward pass; its rows are written in place in a decode."""
        match self._forward:
            case _Prefill():
                return None
            case _Continuation(prefixes=prefixes):
                return torch.stack([prefix.stored.states[name] for prefix in prefixes])
            case _Decode(slots=slots):
                return self._states[name][: len(slots)]

    def _store(self, name: StateName, state: Tensor) -> None:
        if name not in self._states:
            self._states[name] = state.new_zeros(self._rows, *state.shape[1:])
        match self._forward:
            case _Prefill(slots=slots, sources=sources) | _Continuation(slots=slots, sources=sources):
                self._states[name][slots] = state[sources]
            case _Decode(slots=slots):
                self._states[name][: len(slots)] = state

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self._rows, like.shape[1], self._width, like.shape[3])

    def _grown(self, stored: Tensor) -> Tensor:
        grown = self._empty(stored)
        rows, width = min(len(stored), self._rows), min(stored.shape[2], self._width)
        grown[:rows, :, :width] = stored[:rows, :, :width]
        return grown


def _ordered(computed: Tensor, columns: Tensor | None) -> Tensor:
    """Returns `[rows, heads, width, head size]` with the tokens of these columns, `[rows, width]`, of each row."""
    if columns is None:
        return computed
    return computed.gather(2, columns[:, None, :, None].expand(-1, computed.shape[1], -1, computed.shape[3]))


def _joined(computed: Tensor, stored: Sequence[Tensor], forward: _Continuation) -> Tensor:
    """Returns the stored beginnings with the computed tensors `[rows, heads, width, head size]` behind them."""
    rows, heads, width, size = computed.shape
    joined = computed.new_zeros(rows, heads, max(prefix.length for prefix in forward.prefixes) + width, size)
    for row, prefix in enumerate(forward.prefixes):
        joined[row, :, : prefix.length] = stored[row][:, : prefix.length]
    joined[torch.arange(rows, device=computed.device)[:, None], :, forward.positions] = computed.transpose(1, 2)
    return joined
