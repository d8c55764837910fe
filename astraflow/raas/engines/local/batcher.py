"""Continuous batching: sequences join between decode steps and leave the moment they end."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.errors import InternalError
from astraflow.contract.generation import Finish
from astraflow.models.causal import hidden_states, logits_at
from astraflow.raas.engines.local.sampling import draw, log_distribution, uniforms
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.slots import SlotCache


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How much runs at once."""

    sequences: int
    cache_tokens: int
    """Slots times the length of the longest: what the key-value cache may hold."""
    prefill_tokens: int
    """Of one prefill, padding included: while it runs, nobody else gets a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A sequence that has left the batch."""

    sequence: Sequence
    finish: Finish


class Batcher:
    """The sequences that run now; `running[i]` has slot i of the cache. For one thread, in torch's inference mode.

    A step appends one token to each. Prompts that are equal (the members of a group, mostly) and join together are
    computed once. Between steps the cache holds every token of a sequence but its last.
    """

    def __init__(self, model: PreTrainedModel, limits: BatchLimits) -> None:
        self.running: list[Sequence] = []
        self._model = model
        self._limits = limits
        self._cache = SlotCache()
        self._device = model.device

    def admit(self, waiting: deque[Sequence]) -> list[Ended]:
        """Take from the left of `waiting` what fits, in order; returns those that ended with their first token."""
        joining = self._take(waiting)
        if not joining:
            return []
        first = len(self.running)
        self.running += joining
        return self._append(first, self._prefill(first, joining))

    def step(self) -> list[Ended]:
        """One more token for everybody; returns those that ended with it."""
        return self._append(0, self._decode()) if self.running else []

    def remove(self, is_meant: Callable[[Sequence], bool]) -> list[Sequence]:
        """Take these sequences out as they are."""
        removed = {place: sequence for place, sequence in enumerate(self.running) if is_meant(sequence)}
        self._close_ranks(removed)
        return list(removed.values())

    def evict(self) -> list[Sequence]:
        """Take everything out as it is and forget the cache; `admit` computes it anew."""
        evicted, self.running = self.running, []
        self._cache.clear()
        return evicted

    def _take(self, waiting: deque[Sequence]) -> list[Sequence]:
        joining: list[Sequence] = []
        longest_limit = max((sequence.limit for sequence in self.running), default=0)
        longest_text = 0
        while waiting and len(self.running) + len(joining) < self._limits.sequences:
            candidate, count = waiting[0], len(self.running) + len(joining) + 1
            longest_limit = max(longest_limit, candidate.limit)
            longest_text = max(longest_text, len(candidate.prompt) + len(candidate.tokens))
            has_room = count == 1 or count * longest_limit <= self._limits.cache_tokens
            is_brief = not joining or (len(joining) + 1) * longest_text <= self._limits.prefill_tokens
            if not (has_room and is_brief):
                break
            joining.append(waiting.popleft())
        return joining

    def _prefill(self, first: int, joining: list[Sequence]) -> Tensor:
        """Compute the cache of those that join, in slots from `first` on; logits `[joining, vocabulary]`."""
        texts = [sequence.text() for sequence in joining]
        distinct: dict[bytes, int] = {}
        sources = torch.tensor([distinct.setdefault(text.tobytes(), len(distinct)) for text in texts])
        lengths = np.array([len(key) // 4 for key in distinct])
        ids = np.zeros((len(distinct), lengths.max()), dtype=np.int64)
        for row, key in enumerate(distinct):
            ids[row, : lengths[row]] = np.frombuffer(key, dtype=np.int32)
        self._cache.reserve(len(self.running), self._longest() + 1)
        sources = sources.to(self._device)
        self._cache.begin_prefill(torch.arange(first, len(self.running), device=self._device), sources)
        hidden = hidden_states(self._model, self._moved(ids), cache=self._cache)
        ends = np.arange(len(distinct)) * ids.shape[1] + lengths - 1
        return logits_at(self._model, hidden, self._moved(ends))[sources]

    def _decode(self) -> Tensor:
        """Put everybody's last token into the cache; logits `[running, vocabulary]`."""
        lengths = np.array([len(sequence.prompt) + len(sequence.tokens) - 1 for sequence in self.running])
        last = self._moved(np.array([sequence.tokens[-1] for sequence in self.running]))
        longest = int(lengths.max())
        self._cache.reserve(len(self.running), longest + 1)
        positions = self._moved(lengths)
        self._cache.begin_decode(positions, longest)
        columns = torch.arange(longest + 1, device=self._device)
        hidden = hidden_states(
            self._model,
            last[:, None],
            position_ids=positions[:, None],
            attention_mask=(columns <= positions[:, None])[:, None, None],
            cache=self._cache,
        )
        return logits_at(self._model, hidden, torch.arange(len(last), device=self._device))

    def _append(self, first: int, logits: Tensor) -> list[Ended]:
        """Draw a token for each of `running[first:]` from its row of logits; those that end leave the batch."""
        chosen = self.running[first:]
        tokens, logprobs = self._chosen(chosen, logits)
        ended: dict[int, Ended] = {}
        for place, sequence in enumerate(chosen):
            finish = sequence.append(tokens[place], logprobs[place])
            if finish is not None:
                ended[first + place] = Ended(sequence=sequence, finish=finish)
        self._close_ranks(ended)
        return list(ended.values())

    def _chosen(self, sequences: list[Sequence], logits: Tensor) -> tuple[list[int], list[float]]:
        """The next token of each sequence, drawn or forced, and its logprob."""
        temperature = torch.tensor([sequence.sampling.temperature for sequence in sequences])
        top_p = [sequence.sampling.top_p for sequence in sequences]
        cuts = torch.tensor(top_p).to(self._device) if min(top_p) < 1 else None
        distribution = log_distribution(logits, temperature.to(self._device), cuts)
        keys = np.array([sequence.key for sequence in sequences], dtype=np.uint64)
        written = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.uint64)
        tokens = draw(distribution, self._moved(uniforms(keys, written)))
        for place, sequence in enumerate(sequences):
            if sequence.forced is not None:
                tokens[place] = int(sequence.forced[len(sequence.tokens)])
        logprobs = distribution.gather(-1, tokens[:, None])[:, 0].tolist()
        if not np.isfinite(logprobs).all():
            raise InternalError("the model's logits are not finite numbers: its weights or its arithmetic are broken")
        return tokens.tolist(), logprobs

    def _close_ranks(self, gone: Collection[int]) -> None:
        """Free these places by moving the last sequences into them, so that slots stay dense."""
        staying = len(self.running) - len(gone)
        holes = [place for place in gone if place < staying]
        movers = [place for place in range(staying, len(self.running)) if place not in gone]
        if holes:
            width = max(len(self.running[place].prompt) + len(self.running[place].tokens) for place in movers)
            self._cache.move(self._moved(np.array(movers)), self._moved(np.array(holes)), width)
            for hole, mover in zip(holes, movers, strict=True):
                self.running[hole] = self.running[mover]
        del self.running[staying:]

    def _longest(self) -> int:
        return max(len(sequence.prompt) + len(sequence.tokens) for sequence in self.running)

    def _moved(self, values: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self._device)
