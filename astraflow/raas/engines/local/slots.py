"""Batch in one forward pass for all running sequences, whatever their lengths: each has a slot of a cache."""

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.causal import hidden_states
from astraflow.models.masks import RaggedMasks, has_states
from astraflow.raas.engines.local.batcher import (
    Batcher,
    BatchLimits,
    Joining,
    Predictions,
    by_length,
    distinct_rows,
    padded_ids,
)
from astraflow.raas.engines.local.prefixes import Prefix, PrefixStore, WholePrefixStore
from astraflow.raas.engines.local.slot_cache import SlotCache
from astraflow.raas.engines.local.speculation import Speculation


class SlotBatcher(Batcher):
    """Batcher whose `running[i]` has slot i of the cache, for models whose attention is full, or in windows or chunks.

    Convolutions and recurrences are computed beside it. Padding behind tokens would change their states, so prompts are
    then padded at the left, where masked tokens leave a state at zero. A prompt that begins as an ended sequence does
    (usually the next turn of its conversation) continues from what that sequence has left.

    A step computes drafted tokens as well, unless the model has states: a rejected token would stay in them. What
    rejected tokens leave in a slot lies behind its sequence, where later tokens overwrite it.
    """

    way = "slots"
    verifies_drafts = True

    def __init__(self, model: PreTrainedModel, limits: BatchLimits, speculation: Speculation | None = None) -> None:
        super().__init__(model, limits, None if has_states(model) else speculation)
        self._cache = SlotCache()
        self._masks = RaggedMasks(model)
        self._has_states = has_states(model)
        store = WholePrefixStore if self._has_states else PrefixStore
        self._prefixes = store(limits.prefix_bytes)

    def _prefills(self, joining: list[Joining]) -> Iterable[list[Joining]]:
        fresh, continued = [row for row in joining if not row.prefix], [row for row in joining if row.prefix]
        parts = [fresh, *(by_length(continued) if self._has_states else [continued])]
        return [rows for rows in parts if rows]

    def _prefill(self, first: int, joining: list[Joining]) -> Predictions:
        """Either all joining sequences have a prefix or none has one."""
        rows, numbers = distinct_rows(joining)
        sources = self._to_device(numbers)
        slots = torch.arange(first, len(self.running), device=self._device)
        self._cache.reserve(len(self.running), self._longest() + 1)
        prefixes = [row.prefix for row in rows if row.prefix is not None]
        computed = np.array([row.computed for row in rows])
        texts = [row.text[-row.computed :] for row in rows]
        if self._has_states and not prefixes and computed.min() < computed.max():
            return self._predictions_at(*self._padded(texts, slots, sources)).of(sources)
        ids = padded_ids(texts)
        if prefixes:
            hidden = self._continued(ids, slots, sources, prefixes, longest=max(len(row.text) for row in rows))
        else:
            self._cache.begin_prefill(slots, sources)
            hidden = hidden_states(self._model, self._to_device(ids), cache=self._cache)
        ends = np.arange(len(rows)) * ids.shape[1] + computed - 1
        return self._predictions_at(hidden, self._to_device(ends)).of(sources)

    def _padded(self, texts: list[Int32Array], slots: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
        """Runs the model over texts padded at the left; returns its hidden states and the index of each last token."""
        ids = self._to_device(np.flip(padded_ids([text[::-1] for text in texts]), axis=1).copy())
        width = ids.shape[1]
        columns = torch.arange(width, device=self._device)
        padding = width - self._to_device(np.array([len(text) for text in texts]))[:, None]
        positions = columns - padding
        self._cache.begin_prefill(slots, sources, (columns + padding).clamp_(max=width - 1))
        hidden = hidden_states(
            self._model,
            ids,
            position_ids=positions.clamp(min=0),
            masks=self._masks.padded(positions),
            cache=self._cache,
        )
        return hidden, torch.arange(1, len(texts) + 1, device=self._device) * width - 1

    def _continued(
        self, ids: npt.NDArray[np.int64], slots: Tensor, sources: Tensor, prefixes: list[Prefix], *, longest: int
    ) -> Tensor:
        """Runs the model over tokens `[rows, width]` behind the prefix of each row."""
        starts = self._to_device(np.array([prefix.length for prefix in prefixes]))
        positions = starts[:, None] + torch.arange(ids.shape[1], device=self._device)
        self._cache.begin_continuation(slots, sources, prefixes, positions, longest)
        return self._run(self._to_device(ids), positions, keys=max(prefix.length for prefix in prefixes) + ids.shape[1])

    def _run(self, ids: Tensor, positions: Tensor, *, keys: int) -> Tensor:
        """Runs the model over tokens at `positions`, `[rows, width]` both, that attend to the first `keys` tokens of
        their rows up to themselves; returns its hidden states."""
        masks = self._masks.of(positions, keys) if self._cache.has_keys else None
        return hidden_states(self._model, ids, position_ids=positions, masks=masks, cache=self._cache)

    def _decode(self, drafts: list[list[int]]) -> Predictions:
        begins = np.array([len(sequence.prompt) + len(sequence.tokens) - 1 for sequence in self.running])
        counts = np.array([len(draft) + 1 for draft in drafts])
        ids = np.zeros((len(drafts), int(counts.max())), dtype=np.int64)
        ids[:, 0] = [sequence.tokens[-1] for sequence in self.running]
        for row, draft in enumerate(drafts):
            if draft:
                ids[row, 1 : len(draft) + 1] = draft
        order = np.arange(ids.shape[1])
        columns, longest = begins[:, None] + order, int((begins + counts).max())
        self._cache.reserve(len(self.running), int(columns.max()) + 1)
        self._cache.begin_decode(self._to_device(columns), longest)
        positions = np.minimum(columns, longest - 1)  # padding stays below the end of the model's context
        hidden = self._run(self._to_device(ids), self._to_device(positions), keys=longest)
        return self._predictions_at(hidden, self._to_device(np.flatnonzero(order < counts[:, None])))

    def _prefix(self, text: Int32Array) -> Prefix | None:
        return self._prefixes.longest(text)

    def _retain(self, at: int) -> None:
        """Keeps what is in the slot; scored sequences are not continued."""
        sequence = self.running[at]
        if sequence.forced is None:
            computed = sequence.all_tokens()[:-1]
            count = self._prefixes.missing(computed)
            if count:
                self._prefixes.add(computed[:count], *self._cache.copied(at, count))

    def _free(self, freed: Collection[int]) -> None:
        """Moves the last sequences into the freed slots, so that slots stay dense."""
        remaining = len(self.running) - len(freed)
        holes = [slot for slot in freed if slot < remaining]
        movers = [slot for slot in range(remaining, len(self.running)) if slot not in freed]
        if holes:
            width = max(len(self.running[slot].prompt) + len(self.running[slot].tokens) for slot in movers)
            self._cache.move(self._to_device(np.array(movers)), self._to_device(np.array(holes)), width)
            for hole, mover in zip(holes, movers, strict=True):
                self.running[hole] = self.running[mover]
        del self.running[remaining:]

    def _clear(self) -> None:
        self._cache.clear()
        self._prefixes.clear()

    def _longest(self) -> int:
        return max(len(sequence.prompt) + len(sequence.tokens) for sequence in self.running)


class UnpaddedSlotBatcher(SlotBatcher):
    """The same with a prefill for each length, for models that do not mask the padding of their states."""

    def _prefills(self, joining: list[Joining]) -> Iterable[list[Joining]]:
        return [rows for part in super()._prefills(joining) for rows in by_length(part)]
