"""Continuous batching: sequences join between decode steps and leave when they end."""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.errors import InternalError
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.causal import attention_window, hidden_states, logits_at
from astraflow.raas.engines.local.prefixes import Prefix, PrefixStore
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
    prefix_bytes: int
    """Memory for keys and values of ended sequences, which stay for prompts that begin with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSequence:
    """Sequence that has left the batch."""

    sequence: Sequence
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Joining:
    sequence: Sequence
    text: Int32Array
    prefix: Prefix | None

    @property
    def computed(self) -> int:
        """Tokens to compute."""
        return len(self.text) - (self.prefix.length if self.prefix else 0)


class Batcher:
    """Running sequences; `running[i]` has slot i of the cache. For one thread, in torch's inference mode.

    A step appends one token to each sequence. Equal prompts (usually the members of a group) that join together are
    computed once. A prompt that begins as an ended sequence does (usually the next turn of its conversation) continues
    from what that sequence has left. Between steps the cache holds every token of a sequence except its last.
    """

    def __init__(self, model: PreTrainedModel, limits: BatchLimits) -> None:
        self.running: list[Sequence] = []
        self._model = model
        self._limits = limits
        self._window = attention_window(model)
        self._cache = SlotCache()
        self._prefixes = PrefixStore(limits.prefix_bytes)
        self._device = model.device

    @property
    def cache_used(self) -> float:
        """Used share of the cache: running sequences times the length of the longest, of the limit."""
        running = self.running
        longest = max((len(sequence.prompt) + len(sequence.tokens) for sequence in running), default=0)
        return min(1.0, len(running) * longest / self._limits.cache_tokens)

    def admit(self, waiting: deque[Sequence]) -> Iterator[list[EndedSequence]]:
        """Admits sequences from the left of `waiting` while they fit; yields those that ended at once.

        A prefill without prefixes and one with prefixes follow each other. When one fails, its sequences are running,
        and those of the prefill that has not begun are in `waiting` again.
        """
        joining = self._take_fitting(waiting)
        fresh, continued = [row for row in joining if not row.prefix], [row for row in joining if row.prefix]
        prefills = deque(rows for rows in (fresh, continued) if rows)
        try:
            while prefills:
                rows = prefills.popleft()
                first = len(self.running)
                self.running += [row.sequence for row in rows]
                yield self._append(first, self._prefill(first, rows))
        finally:
            waiting.extendleft(row.sequence for rows in reversed(prefills) for row in reversed(rows))

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
        self._prefixes.clear()
        return evicted

    def _take_fitting(self, waiting: deque[Sequence]) -> list[_Joining]:
        joining: list[_Joining] = []
        longest_limit = max((sequence.limit for sequence in self.running), default=0)
        most_computed = 0
        while waiting and len(self.running) + len(joining) < self._limits.sequences:
            candidate, count = waiting[0], len(self.running) + len(joining) + 1
            text = candidate.all_tokens()
            row = _Joining(sequence=candidate, text=text, prefix=self._prefixes.longest(text))
            longest_limit = max(longest_limit, candidate.limit)
            most_computed = max(most_computed, row.computed)
            has_room = count == 1 or count * longest_limit <= self._limits.cache_tokens
            is_brief = not joining or (len(joining) + 1) * most_computed <= self._limits.prefill_tokens
            if not (has_room and is_brief):
                break
            waiting.popleft()
            joining.append(row)
        return joining

    def _prefill(self, first: int, joining: list[_Joining]) -> Tensor:
        """Computes the cache of joining sequences, in slots from `first` on; returns logits `[joining, vocabulary]`.

        Either all of them have a prefix or none has one.
        """
        numbers: dict[bytes, int] = {}
        rows: list[_Joining] = []
        for row in joining:
            if numbers.setdefault(row.text.tobytes(), len(rows)) == len(rows):
                rows.append(row)
        computed = np.array([row.computed for row in rows])
        ids = np.zeros((len(rows), computed.max()), dtype=np.int64)
        for at, row in enumerate(rows):
            ids[at, : row.computed] = row.text[-row.computed :]
        sources = self._to_device(np.array([numbers[row.text.tobytes()] for row in joining]))
        slots = torch.arange(first, len(self.running), device=self._device)
        self._cache.reserve(len(self.running), self._longest() + 1)
        prefixes = [row.prefix for row in rows if row.prefix is not None]
        if prefixes:
            hidden = self._continued(ids, slots, sources, prefixes, longest=max(len(row.text) for row in rows))
        else:
            self._cache.begin_prefill(slots, sources)
            hidden = hidden_states(self._model, self._to_device(ids), cache=self._cache)
        ends = np.arange(len(rows)) * ids.shape[1] + computed - 1
        return logits_at(self._model, hidden, self._to_device(ends))[sources]

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
        distances = positions[..., None] - torch.arange(keys, device=self._device)
        is_seen = (distances >= 0)[:, None]
        is_near = None if self._window is None else is_seen & (distances < self._window)[:, None]
        return hidden_states(
            self._model, ids, position_ids=positions, attention_mask=is_seen, window_mask=is_near, cache=self._cache
        )

    def _decode(self) -> Tensor:
        """Adds the last token of every sequence to the cache; returns logits `[running, vocabulary]`."""
        lengths = np.array([len(sequence.prompt) + len(sequence.tokens) - 1 for sequence in self.running])
        last = self._to_device(np.array([sequence.tokens[-1] for sequence in self.running]))
        longest = int(lengths.max())
        self._cache.reserve(len(self.running), longest + 1)
        positions = self._to_device(lengths)
        self._cache.begin_decode(positions, longest)
        hidden = self._run(last[:, None], positions[:, None], keys=longest + 1)
        return logits_at(self._model, hidden, torch.arange(len(last), device=self._device))

    def _append(self, first: int, logits: Tensor) -> list[EndedSequence]:
        """Draws a token for each of `running[first:]` from its row of logits; removes and returns ended sequences."""
        sequences = self.running[first:]
        tokens, logprobs = self._next_tokens(sequences, logits)
        ended: dict[int, EndedSequence] = {}
        for row, sequence in enumerate(sequences):
            finish = sequence.append(tokens[row], logprobs[row])
            if finish is not None:
                self._retain(first + row)
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

    def _retain(self, slot: int) -> None:
        """Keeps what an ended sequence has in its slot, for prompts that continue it; scored ones are not continued."""
        sequence = self.running[slot]
        if sequence.forced is None:
            computed = sequence.all_tokens()[:-1]
            count = self._prefixes.missing(computed)
            if count:
                self._prefixes.add(computed[:count], *self._cache.copied(slot, count))

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
