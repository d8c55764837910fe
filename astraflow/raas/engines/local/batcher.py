"""Continuous batching: sequences join between decode steps and leave when they end."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from astraflow.contract.errors import InternalError
from astraflow.contract.rollouts.expert_columns import encoded_experts
from astraflow.contract.rollouts.generation import Finish, Sampling
from astraflow.contract.rollouts.token_columns import TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.causal import logits_at
from astraflow.models.output_head import HeadForm
from astraflow.raas.engines.local.experts import ExpertRecorder
from astraflow.raas.engines.local.prefixes import Prefix
from astraflow.raas.engines.local.sampling import draw, log_distribution, random_uniforms
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.speculation import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits on concurrently running sequences."""

    sequences: int
    cache_tokens: int
    """Size limit of the key-value cache: slots times the length of the longest sequence."""
    prefill_tokens: int
    """Maximum tokens of one prefill, padding included; decoding of other sequences pauses during it."""
    prefix_bytes: int
    """Memory for what ended sequences have computed, which stays for prompts that begin with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSequence:
    """Sequence that has left the batch."""

    sequence: Sequence
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joining:
    """Sequence that joins the batch."""

    sequence: Sequence
    text: Int32Array
    prefix: Prefix | None

    @property
    def computed(self) -> int:
        """Tokens to compute."""
        return len(self.text) - (self.prefix.length if self.prefix else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Logits, and chosen experts, at the last token of each sequence."""

    logits: Tensor
    """float32 `[sequences, vocabulary]`."""
    experts: Tensor | None = None
    """int64 `[sequences, layers, chosen]`: experts that computed them; None if no sequence records them."""

    def of(self, rows: Tensor) -> "Predictions":
        """Returns those of some sequences, each as often as it is named."""
        return Predictions(self.logits[rows], None if self.experts is None else self.experts[rows])

    @staticmethod
    def joined(parts: "list[Predictions]") -> "Predictions":
        """Returns the predictions of all parts, in order."""
        experts = [part.experts for part in parts if part.experts is not None]
        return Predictions(torch.cat([part.logits for part in parts]), torch.cat(experts) if experts else None)


class Batcher(ABC):
    """Running sequences, and the states of the model after them. For one thread, in torch's inference mode.

    A step appends one token to each sequence, and more where drafted tokens were right. Equal prompts (usually the
    members of a group) that join together are computed once. Between steps every token of a sequence except its last
    is computed.
    """

    way: ClassVar[str]
    """How sequences of different lengths are computed, in logs and reports."""
    verifies_drafts: ClassVar[bool] = False
    """True if a step can compute more than one token of a sequence."""

    def __init__(self, model: PreTrainedModel, limits: BatchLimits, speculation: Speculation | None = None) -> None:
        """speculation: drafts tokens where steps can verify them; None drafts nothing."""
        self.running: list[Sequence] = []
        self.speculation = speculation if self.verifies_drafts else None
        self._model = model
        self._limits = limits
        self._device = model.device
        self._head_form = HeadForm.of(model.config)
        self._experts = ExpertRecorder(model)

    @property
    def cache_used(self) -> float:
        """Used share of the cache: running sequences times the length of the longest, of the limit."""
        running = self.running
        longest = max((len(sequence.prompt) + len(sequence.tokens) for sequence in running), default=0)
        return min(1.0, len(running) * longest / self._limits.cache_tokens)

    def admit(self, waiting: deque[Sequence]) -> Iterator[list[EndedSequence]]:
        """Admits sequences from the left of `waiting` while they fit; yields those that ended at once.

        Prefills follow each other. When one fails, its sequences are running, and those of the prefills that have not
        begun are in `waiting` again.
        """
        prefills = deque(self._prefills(self._take_fitting(waiting)))
        try:
            while prefills:
                rows = prefills.popleft()
                first = len(self.running)
                self.running += [row.sequence for row in rows]
                yield self._append(first, self._prefill(first, rows))
        finally:
            waiting.extendleft(row.sequence for rows in reversed(prefills) for row in reversed(rows))

    def step(self) -> list[EndedSequence]:
        """Appends a token or more to every sequence; returns the sequences that ended."""
        if not self.running:
            return []
        if self.speculation is None:
            return self._append(0, self._decode([[] for _ in self.running]))
        drafts, before = self.speculation.drafts(self.running), self.running.copy()
        lengths = [len(sequence.tokens) for sequence in before]
        ended = self._append(0, self._decode(drafts), drafts)
        added = [len(sequence.tokens) - length for sequence, length in zip(before, lengths, strict=True)]
        self.speculation.note(before, drafts, [count - 1 for count in added])
        for end in ended:
            self.speculation.ended(end.sequence)
        return ended

    def remove(self, matches: Callable[[Sequence], bool]) -> list[Sequence]:
        """Removes the matching sequences and returns them unchanged."""
        removed = {at: sequence for at, sequence in enumerate(self.running) if matches(sequence)}
        self._free(removed)
        return list(removed.values())

    def evict(self) -> list[Sequence]:
        """Removes and returns all sequences and clears the cache; `admit` computes them again."""
        evicted, self.running = self.running, []
        self._clear()
        return evicted

    @abstractmethod
    def _prefills(self, joining: list[Joining]) -> Iterable[list[Joining]]:
        """Returns the joining sequences of each prefill."""

    @abstractmethod
    def _prefill(self, first: int, joining: list[Joining]) -> Predictions:
        """Computes the joining sequences, which are `running[first:]`."""

    @abstractmethod
    def _decode(self, drafts: list[list[int]]) -> Predictions:
        """Computes the last token of every sequence and the drafted tokens behind it; returns their predictions in
        order, those of one sequence after one another."""

    @abstractmethod
    def _free(self, freed: Collection[int]) -> None:
        """Removes sequences, by their indices in `running`."""

    @abstractmethod
    def _clear(self) -> None:
        """Discards everything that was computed."""

    @abstractmethod
    def _retain(self, at: int) -> None:
        """Keeps what the ended sequence `running[at]` has computed, if a prompt can continue it."""

    def _prefix(self, text: Int32Array) -> Prefix | None:
        """Returns what an ended sequence has left of a text's beginning."""
        return None

    def _take_fitting(self, waiting: deque[Sequence]) -> list[Joining]:
        joining: list[Joining] = []
        longest_limit = max((sequence.limit for sequence in self.running), default=0)
        most_computed = 0
        while waiting and len(self.running) + len(joining) < self._limits.sequences:
            candidate, count = waiting[0], len(self.running) + len(joining) + 1
            text = candidate.all_tokens()
            row = Joining(sequence=candidate, text=text, prefix=self._prefix(text))
            longest_limit = max(longest_limit, candidate.limit)
            most_computed = max(most_computed, row.computed)
            has_room = count == 1 or count * longest_limit <= self._limits.cache_tokens
            is_brief = not joining or (len(joining) + 1) * most_computed <= self._limits.prefill_tokens
            if not (has_room and is_brief):
                break
            waiting.popleft()
            joining.append(row)
        return joining

    def _append(
        self, first: int, predictions: Predictions, drafts: list[list[int]] | None = None
    ) -> list[EndedSequence]:
        """Draws tokens for each of `running[first:]` from its rows of logits: one, and one more after each drafted
        token that was drawn; removes and returns ended sequences."""
        sequences = self.running[first:]
        drafts = drafts or [[] for _ in sequences]
        rows = [
            (sequence, offset)
            for sequence, draft in zip(sequences, drafts, strict=True)
            for offset in range(len(draft) + 1)
        ]
        tokens, logprobs, columns = self._next_tokens(rows, predictions.logits)
        if predictions.experts is not None and self._experts.mixture is not None:
            chosen = predictions.experts.cpu().numpy()
            columns = {**columns, TokenColumn.EXPERTS: encoded_experts(chosen, self._experts.mixture)}
        ended: dict[int, EndedSequence] = {}
        begin = 0
        for at, (sequence, draft) in enumerate(zip(sequences, drafts, strict=True), first):
            for row, drafted in enumerate([*draft, None], begin):
                sequence.record({column: values[row] for column, values in columns.items()})
                finish = sequence.append(tokens[row], logprobs[row])
                if finish is not None:
                    self._retain(at)
                    ended[at] = EndedSequence(sequence=sequence, finish=finish)
                if finish is not None or tokens[row] != drafted:
                    break
            begin += len(draft) + 1
        self._free(ended)
        return list(ended.values())

    def _next_tokens(
        self, rows: list[tuple[Sequence, int]], logits: Tensor
    ) -> tuple[list[int], list[float], TokenColumns]:
        """Returns for each row, a sequence and a number of drafted tokens behind it, the next token, drawn or forced,
        its logprob, and columns, `[rows, k]`, as wide as any sequence records."""
        samplings = [sequence.sampling for sequence, _ in rows]
        distribution = log_distribution(
            self._within_grammars([sequence for sequence, _ in rows], logits),
            torch.tensor([sampling.temperature for sampling in samplings]).to(self._device),
            self._cuts([sampling.top_p for sampling in samplings], without=1),
            top_k=self._cuts([sampling.top_k for sampling in samplings], without=0),
            min_p=self._cuts([sampling.min_p for sampling in samplings], without=0),
        )
        keys = np.array([sequence.random_key for sequence, _ in rows], dtype=np.uint64)
        written = np.array([len(sequence.tokens) + offset for sequence, offset in rows], dtype=np.uint64)
        tokens = draw(distribution, self._to_device(random_uniforms(keys, written)))
        for row, (sequence, _) in enumerate(rows):
            if sequence.forced is not None:  # without drafts, as sequences with a grammar
                tokens[row] = int(sequence.forced[len(sequence.tokens)])
        logprobs = distribution.gather(-1, tokens[:, None])[:, 0].tolist()
        if not np.isfinite(logprobs).all():
            raise InternalError(
                "cannot sample: the logits of the model are not finite; check its weights and the option compute_dtype",
                code="engine.non_finite_logits",
            )
        return tokens.tolist(), logprobs, _columns(distribution, samplings)

    def _within_grammars(self, sequences: list[Sequence], logits: Tensor) -> Tensor:
        """Returns the logits without those of tokens that the grammars of sequences exclude."""
        grammars = {row: sequence.grammar for row, sequence in enumerate(sequences) if sequence.grammar is not None}
        if not grammars:
            return logits
        allowed = np.ones(logits.shape, np.bool_)
        for row, grammar in grammars.items():
            allowed[row] = grammar.allowed
        return logits.masked_fill(~self._to_device(allowed), -torch.inf)

    def _cuts(self, values: list[float] | list[int], *, without: int) -> Tensor | None:
        """Returns the values `[rows]`; None when no row has a cut."""
        return None if all(value == without for value in values) else torch.tensor(values).to(self._device)

    def _predictions_at(self, hidden: Tensor, positions: Tensor) -> Predictions:
        """Returns the predictions at positions of the flattened hidden states of the last forward pass."""
        logits = logits_at(self._model, hidden, positions, form=self._head_form)
        return Predictions(logits, self._experts_at(positions))

    def _last_positions(self, rows: int, width: int) -> Tensor:
        """Returns the positions of the last tokens of rows in the flattened ids."""
        return torch.arange(1, rows + 1, device=self._device) * width - 1

    def _experts_at(self, positions: Tensor) -> Tensor | None:
        is_asked = any(sequence.sampling.experts for sequence in self.running)
        return self._experts.at(positions) if is_asked else None

    def _last_tokens(self) -> Tensor:
        """Returns the last token of every sequence, `[running, 1]`."""
        return self._to_device(np.array([[sequence.tokens[-1]] for sequence in self.running]))

    def _to_device(self, values: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _columns(distribution: Tensor, samplings: list[Sampling]) -> TokenColumns:
    """Returns the most likely tokens of each distribution, and those with a probability."""
    width = max(max(sampling.top_tokens, sampling.top_k * sampling.with_support) for sampling in samplings)
    if not width:
        return {}
    values, ids = distribution.topk(min(width, distribution.shape[-1]), dim=-1)
    arrays = {
        TokenColumn.TOP_TOKENS: ids,
        TokenColumn.TOP_LOGPROBS: values.half(),
        TokenColumn.SUPPORT: ids.masked_fill(values == -torch.inf, -1),
    }
    return {column: array.cpu().numpy().astype(column.dtype) for column, array in arrays.items()}


def by_length(joining: list[Joining]) -> list[list[Joining]]:
    """Returns the sequences that have as many tokens to compute, which need no padding, in order of arrival."""
    parts: dict[int, list[Joining]] = {}
    for row in joining:
        parts.setdefault(row.computed, []).append(row)
    return list(parts.values())


def distinct_rows(joining: list[Joining]) -> tuple[list[Joining], npt.NDArray[np.int64]]:
    """Returns the joining sequences without those of equal text, and the row of each, `[joining]`."""
    numbers: dict[bytes, int] = {}
    rows: list[Joining] = []
    for row in joining:
        if numbers.setdefault(row.text.tobytes(), len(rows)) == len(rows):
            rows.append(row)
    return rows, np.array([numbers[row.text.tobytes()] for row in joining])


def padded_ids(texts: list[Int32Array]) -> npt.NDArray[np.int64]:
    """Returns the texts `[rows, longest]`, padded at the right."""
    ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    return ids
