"""Continuous batching: sequences join between decode steps and leave when they end."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.errors import InternalError
from astraflow.contract.rollouts.generation import Finish
from astraflow.models.causal import attention_window, hidden_states, logits_at
from astraflow.raas.engines.local.sampling import draw, log_distribution, random_uniforms
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.slot_cache import SlotCache


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits on concurrently running sequences."""

    sequences: int
    cache_tokens: int
    """Size limit of the key-value cache: slots times the length of the longest sequence."""
    prefill_tokens: int
    """Maximum tokens of one prefill, padding included; decoding of other sequences pauses during it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSequence:
    """Sequence that has left the batch."""

    sequence: Sequence
    finish: Finish


class Batcher:
    """Running sequences; `running[i]` has slot i of the cache. For one thread, in torch's inference mode.

    A step appends one token to each sequence. Equal prompts (usually the members of a group) that join together are
    computed once. Between steps the cache holds every token of a sequence except its last.
    """

    def __init__(self, model: PreTrainedModel, limits: BatchLimits) -> None:
        self.running: list[Sequence] = []
        self._model = model
        self._limits = limits
        self._window = attention_window(model)
        self._cache = SlotCache()
        self._device = model.device

    @property
    def cache_used(self) -> float:
        """Used share of the cache: running sequences times the length of the longest, of the limit."""
        running = self.running
        longest = max((len(sequence.prompt) + len(sequence.tokens) for sequence in running), default=0)
        return min(1.0, len(running) * longest / self._limits.cache_tokens)

    def admit(self, waiting: deque[Sequence]) -> list[EndedSequence]:
        """Admits sequences from the left of `waiting` while they fit; returns those that ended at once."""
        joining = self._take_fitting(waiting)
        if not joining:
            return []
        first = len(self.running)
        self.running += joining
        return self._append(first, self._prefill(first, joining))

    def step(self) -> list[EndedSequence]:
        """Appends a token to every sequence; returns the sequences that ended."""
        return self._append(0, self._decode()) if self.running else []

    def remove(self, matches: Callable[[Sequence], bool]) -> list[Sequence]:
        """Removes the matching sequences and returns them unchanged."""
        removed = {slot: sequence for slot, sequence in enumerate(self.running) if matches(sequence)}
        self._compact(removed)
        return list(removed.values())

    def evict(self) -> list[Sequence]:
        """Removes and returns all sequences and clears the cache; `admit` computes them again."""
        evicted, self.running = self.running, []
        self._cache.clear()
        return evicted

    def _take_fitting(self, waiting: deque[Sequence]) -> list[Sequence]:
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
        """Computes the cache of joining sequences, in slots from `first` on; returns logits `[joining, vocabulary]`."""
        texts = [sequence.all_tokens() for sequence in joining]
        distinct: dict[bytes, int] = {}
        sources = torch.tensor([distinct.setdefault(text.tobytes(), len(distinct)) for text in texts])
        lengths = np.array([len(key) // 4 for key in distinct])
        ids = np.zeros((len(distinct), lengths.max()), dtype=np.int64)
        for row, key in enumerate(distinct):
            ids[row, : lengths[row]] = np.frombuffer(key, dtype=np.int32)
        self._cache.reserve(len(self.running), self._longest() + 1)
        sources = sources.to(self._device)
        self._cache.begin_prefill(torch.arange(first, len(self.running), device=self._device), sources)
        hidden = hidden_states(self._model, self._to_device(ids), cache=self._cache)
        ends = np.arange(len(distinct)) * ids.shape[1] + lengths - 1
        return logits_at(self._model, hidden, self._to_device(ends))[sources]

    def _decode(self) -> Tensor:
        """Adds the last token of every sequence to the cache; returns logits `[running, vocabulary]`."""
        lengths = np.array([len(sequence.prompt) + len(sequence.tokens) - 1 for sequence in self.running])
        last = self._to_device(np.array([sequence.tokens[-1] for sequence in self.running]))
        longest = int(lengths.max())
        self._cache.reserve(len(self.running), longest + 1)
        positions = self._to_device(lengths)
        self._cache.begin_decode(positions, longest)
        distances = positions[:, None] - torch.arange(longest + 1, device=self._device)
        is_seen = (distances >= 0)[:, None, None]
        is_near = None if self._window is None else is_seen & (distances < self._window)[:, None, None]
        hidden = hidden_states(
            self._model,
            last[:, None],
            position_ids=positions[:, None],
            attention_mask=is_seen,
            window_mask=is_near,
            cache=self._cache,
        )
        return logits_at(self._model, hidden, torch.arange(len(last), device=self._device))

    def _append(self, first: int, logits: Tensor) -> list[EndedSequence]:
        """Draws a token for each of `running[first:]` from its row of logits; removes and returns ended sequences."""
        sequences = self.running[first:]
        tokens, logprobs = self._next_tokens(sequences, logits)
        ended: dict[int, EndedSequence] = {}
        for row, sequence in enumerate(sequences):
            finish = sequence.append(tokens[row], logprobs[row])
            if finish is not None:
                ended[first + row] = EndedSequence(sequence=sequence, finish=finish)
        self._compact(ended)
        return list(ended.values())

    def _next_tokens(self, sequences: list[Sequence], logits: Tensor) -> tuple[list[int], list[float]]:
        """Returns the next token of each sequence, drawn or forced, and its logprob."""
        samplings = [sequence.sampling for sequence in sequences]
        distribution = log_distribution(
            logits,
            torch.tensor([sampling.temperature for sampling in samplings]).to(self._device),
            self._cuts([sampling.top_p for sampling in samplings], without=1),
            top_k=self._cuts([sampling.top_k for sampling in samplings], without=0),
            min_p=self._cuts([sampling.min_p for sampling in samplings], without=0),
        )
        keys = np.array([sequence.random_key for sequence in sequences], dtype=np.uint64)
        written = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.uint64)
        tokens = draw(distribution, self._to_device(random_uniforms(keys, written)))
        for row, sequence in enumerate(sequences):
            if sequence.forced is not None:
                tokens[row] = int(sequence.forced[len(sequence.tokens)])
        logprobs = distribution.gather(-1, tokens[:, None])[:, 0].tolist()
        if not np.isfinite(logprobs).all():
            raise InternalError(
                "cannot sample: the logits of the model are not finite; check its weights and the option compute_dtype",
                code="engine.non_finite_logits",
            )
        return tokens.tolist(), logprobs

    def _cuts(self, values: list[float] | list[int], *, without: int) -> Tensor | None:
        """Returns the values `[rows]`; None when no row has a cut."""
        return None if all(value == without for value in values) else torch.tensor(values).to(self._device)

    def _compact(self, freed: Collection[int]) -> None:
        """Frees these slots by moving the last sequences into them, so that slots stay dense."""
        remaining = len(self.running) - len(freed)
        holes = [slot for slot in freed if slot < remaining]
        movers = [slot for slot in range(remaining, len(self.running)) if slot not in freed]
        if holes:
            width = max(len(self.running[slot].prompt) + len(self.running[slot].tokens) for slot in movers)
            self._cache.move(self._to_device(np.array(movers)), self._to_device(np.array(holes)), width)
            for hole, mover in zip(holes, movers, strict=True):
                self.running[hole] = self.running[mover]
        del self.running[remaining:]

    def _longest(self) -> int:
        return max(len(sequence.prompt) + len(sequence.tokens) for sequence in self.running)

    def _to_device(self, values: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self._device)
