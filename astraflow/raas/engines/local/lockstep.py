"""Batches of sequences of one length each, whose states transformers' own cache continues: no padding, no masks."""

from collections.abc import Collection, Iterable

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.models.state_cache import StateCache
from astraflow.raas.engines.local.batcher import (
    Batcher,
    BatchLimits,
    Joining,
    Predictions,
    by_length,
    distinct_rows,
    padded_ids,
)
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.speculation import Speculation


class LockstepBatcher(Batcher):
    """Batcher with a forward pass for each length of running sequences, for models with layers of any kind.

    The running sequences are those of the batches, in order. A batch that reaches the length of another joins it.
    """

    way = "lockstep"

    def __init__(self, model: PreTrainedModel, limits: BatchLimits, speculation: Speculation | None = None) -> None:
        super().__init__(model, limits, speculation)
        self._batches: list[StateCache] = []

    def _prefills(self, joining: list[Joining]) -> Iterable[list[Joining]]:
        return by_length(joining)

    def _prefill(self, first: int, joining: list[Joining]) -> Predictions:
        rows, numbers = distinct_rows(joining)
        sources = self._to_device(numbers)
        ids = self._to_device(padded_ids([row.text for row in rows]))
        hidden, states = StateCache.empty(self._model).continued(self._model, ids)
        self._batches.append(states if len(rows) == len(joining) else states.selected(sources))
        return self._last(hidden).of(sources)

    def _decode(self, drafts: list[list[int]]) -> Predictions:
        self._join_equal_lengths()
        predictions: list[Predictions] = []
        parts = self._last_tokens().split([states.rows for states in self._batches])
        for at, (states, ids) in enumerate(zip(self._batches, parts, strict=True)):
            hidden, self._batches[at] = states.continued(self._model, ids)
            predictions.append(self._last(hidden))
        return Predictions.joined(predictions)

    def _join_equal_lengths(self) -> None:
        if len({states.length for states in self._batches}) == len(self._batches):
            return
        batches: dict[int, list[StateCache]] = {}
        running: dict[int, list[Sequence]] = {}
        begin = 0
        for states in self._batches:
            batches.setdefault(states.length, []).append(states)
            running.setdefault(states.length, []).extend(self.running[begin : begin + states.rows])
            begin += states.rows
        self._batches = [StateCache.joined(equal) if len(equal) > 1 else equal[0] for equal in batches.values()]
        self.running = [sequence for sequences in running.values() for sequence in sequences]

    def _free(self, freed: Collection[int]) -> None:
        if not freed:
            return
        batches: list[StateCache] = []
        begin = 0
        for states in self._batches:
            kept = [row for row in range(states.rows) if begin + row not in freed]
            begin += states.rows
            if len(kept) == states.rows:
                batches.append(states)
            elif kept:
                batches.append(states.selected(self._to_device(np.array(kept))))
        self._batches = batches
        self.running = [sequence for at, sequence in enumerate(self.running) if at not in freed]

    def _clear(self) -> None:
        self._batches = []

    def _retain(self, at: int) -> None:
        """Keeps nothing: a turn of a conversation is computed from its beginning."""

    def _last(self, hidden: Tensor) -> Predictions:
        """Returns the predictions at the last token of each row."""
        return self._predictions_at(hidden, self._last_positions(*hidden.shape[:2]))


class RecomputingBatcher(Batcher):
    """Batcher that runs the whole model over whole sequences for each token, for all other models."""

    way = "recomputed"

    def _prefills(self, joining: list[Joining]) -> Iterable[list[Joining]]:
        return [joining] if joining else []

    def _prefill(self, first: int, joining: list[Joining]) -> Predictions:
        return self._computed(joining)

    def _decode(self, drafts: list[list[int]]) -> Predictions:
        return self._computed(
            [Joining(sequence=running, text=running.all_tokens(), prefix=None) for running in self.running]
        )

    def _computed(self, joining: list[Joining]) -> Predictions:
        """Computes whole sequences. Rows are not padded: top-k attention would choose other tokens."""
        rows, numbers = distinct_rows(joining)
        predictions: list[Predictions] = []
        order: dict[int, int] = {}
        for part in by_length(rows):
            size = max(1, self._limits.prefill_tokens // part[0].computed)
            for begin in range(0, len(part), size):
                chunk = part[begin : begin + size]
                ids = self._to_device(padded_ids([row.text for row in chunk]))
                last = self._model(input_ids=ids, use_cache=False).logits[:, -1].float()
                predictions.append(Predictions(last, self._experts_at(self._last_positions(*ids.shape))))
                order.update({id(row): len(order) + at for at, row in enumerate(chunk)})
        places = np.array([order[id(rows[number])] for number in numbers])
        return Predictions.joined(predictions).of(self._to_device(places))

    def _free(self, freed: Collection[int]) -> None:
        self.running = [sequence for at, sequence in enumerate(self.running) if at not in freed]

    def _clear(self) -> None:
        """Has no cache."""

    def _retain(self, at: int) -> None:
        """Keeps nothing."""
