"""Key-value cache with one slot for each running sequence, filled from the start of the slot."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.raas.engines.local.prefixes import Prefix

_ROW_STEP, _WIDTH_STEP = 16, 64
"""Growth steps of the storage, in slots and tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefill:
    slots: Tensor
    sources: Tensor


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
    lengths: Tensor
    visible: int


class SlotCache:
    """Keys and values of all layers, `[slots, heads, width, head size]` each, in transformers' cache protocol.

    Sequence i has slot i and its token j is in column j, so positions need no offsets and a slot is freed by moving
    the last slot into it. Before a forward pass, call `begin_prefill`, `begin_continuation` or `begin_decode`.
    """

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows = 0
        self._width = 0
        self._forward: _Prefill | _Continuation | _Decode

    def reserve(self, rows: int, width: int) -> None:
        """Grows the storage to that many slots and tokens; the content stays."""
        if rows <= self._rows and width <= self._width:
            return
        self._rows = -(-rows // _ROW_STEP) * _ROW_STEP
        self._width = -(-width // _WIDTH_STEP) * _WIDTH_STEP
        self._keys = [self._grown(stored) for stored in self._keys]
        self._values = [self._grown(stored) for stored in self._values]

    def begin_prefill(self, slots: Tensor, sources: Tensor) -> None:
        """Starts a forward pass over whole prompts: slot `slots[i]` receives row `sources[i]`."""
        self._forward = _Prefill(slots=slots, sources=sources)

    def begin_continuation(
        self, slots: Tensor, sources: Tensor, prefixes: Sequence[Prefix], positions: Tensor, longest: int
    ) -> None:
        """Starts a forward pass over the rest of prompts: row i, whose tokens have `positions[i]`, continues
        `prefixes[i]`, and slot `slots[i]` receives row `sources[i]`. longest: tokens of the longest prompt."""
        self._forward = _Continuation(
            slots=slots, sources=sources, prefixes=prefixes, positions=positions, longest=longest
        )

    def begin_decode(self, lengths: Tensor, longest: int) -> None:
        """Starts a forward pass that adds a token to each of the first slots. longest: maximum of `lengths`."""
        slots = torch.arange(len(lengths), device=lengths.device)
        self._forward = _Decode(slots=slots, lengths=lengths, visible=longest + 1)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Stores the new keys and values of an attention layer; returns those that the layer attends to."""
        while len(self._keys) <= layer:
            self._keys.append(self._empty(keys))
            self._values.append(self._empty(values))
        stored_keys, stored_values = self._keys[layer], self._values[layer]
        match self._forward:
            case _Prefill(slots=slots, sources=sources):
                width = keys.shape[2]
                stored_keys[slots, :, :width] = keys[sources]
                stored_values[slots, :, :width] = values[sources]
                return keys, values
            case _Continuation() as forward:
                all_keys = _joined(keys, [prefix.stored.keys[layer] for prefix in forward.prefixes], forward)
                all_values = _joined(values, [prefix.stored.values[layer] for prefix in forward.prefixes], forward)
                stored_keys[forward.slots, :, : forward.longest] = all_keys[forward.sources, :, : forward.longest]
                stored_values[forward.slots, :, : forward.longest] = all_values[forward.sources, :, : forward.longest]
                return all_keys, all_values
            case _Decode(slots=slots, lengths=lengths, visible=visible):
                stored_keys[slots, :, lengths] = keys[:, :, 0]
                stored_values[slots, :, lengths] = values[:, :, 0]
                return stored_keys[: len(slots), :, :visible], stored_values[: len(slots), :, :visible]

    def move(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Copies the first `width` tokens of the slots `sources` to the slots `targets`."""
        for stored in (*self._keys, *self._values):
            stored[targets, :, :width] = stored[sources, :, :width]

    def copied(self, slot: int, tokens: int) -> tuple[list[Tensor], list[Tensor]]:
        """Returns copies of the keys and values, by layer, of the first tokens in a slot."""
        return (
            [stored[slot, :, :tokens].clone() for stored in self._keys],
            [stored[slot, :, :tokens].clone() for stored in self._values],
        )

    def clear(self) -> None:
        """Frees the memory."""
        self._keys, self._values, self._rows, self._width = [], [], 0, 0

    def get_seq_length(self, _layer: int = 0) -> int:
        """Returns the tokens before the forward pass, for models that number positions themselves (in a prefill)."""
        return 0

    def get_query_offset(self, _layer: int = 0) -> int:
        """Returns the same as `get_seq_length`."""
        return 0

    def get_mask_sizes(self, queries: int, _layer: int = 0) -> tuple[int, int]:
        """Returns the number of keys that a prefill attends to, and their offset."""
        return queries, 0

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self._rows, like.shape[1], self._width, like.shape[3])

    def _grown(self, stored: Tensor) -> Tensor:
        grown = self._empty(stored)
        rows, width = min(len(stored), self._rows), min(stored.shape[2], self._width)
        grown[:rows, :, :width] = stored[:rows, :, :width]
        return grown


def _joined(computed: Tensor, stored: Sequence[Tensor], forward: _Continuation) -> Tensor:
    """Returns the stored beginnings with the computed tensors `[rows, heads, width, head size]` behind them."""
    rows, heads, width, size = computed.shape
    joined = computed.new_zeros(rows, heads, max(prefix.length for prefix in forward.prefixes) + width, size)
    for row, prefix in enumerate(forward.prefixes):
        joined[row, :, : prefix.length] = stored[row][:, : prefix.length]
    joined[torch.arange(rows, device=computed.device)[:, None], :, forward.positions] = computed.transpose(1, 2)
    return joined
