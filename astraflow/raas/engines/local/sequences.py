"""State of one request in the engine."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.token_columns import TOP_COLUMNS, ColumnArray, TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.continuations import tokens_of_stop
from astraflow.raas.engines.local.grammars import Grammar


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """Prompt that is being continued. It outlives its slot in the batch: a weight swap puts it back into the queue.

    With `forced`, no token is drawn: the given tokens are appended one by one, through the same decode path, to obtain
    their logprobs.
    """

    request_id: str
    prompt: Int32Array
    sampling: Sampling
    random_key: int
    """Key of the request's stream of random numbers."""
    reply: asyncio.Future[Generation]
    forced: Int32Array | None = None
    decode: Callable[[Int32Array], str] | None = None
    """Returns the text of tokens; required for stop strings."""
    grammar: Grammar | None = None
    """Restricts the tokens, which are never drafted then; None: any can follow."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    columns: dict[TokenColumn, list[ColumnArray]] = field(default_factory=dict)
    """For each token its entries in the columns that the request asks for, at least as many."""
    text: list[int] = field(default_factory=list)
    """Prompt and generated tokens, as far as `DraftIndex` has them; empty before."""
    drafted: int = 0
    """Tokens that were drafted and verified. Count."""
    accepted: int = 0
    """Drafted tokens among `tokens`. Count."""
    spans: list[VersionSpan] = field(default_factory=list)
    """Version spans of the tokens before the latest weight swap."""

    @property
    def limit(self) -> int:
        """Maximum length of the finished sequence, prompt included. Tokens."""
        return len(self.prompt) + self.sampling.max_new_tokens

    def all_tokens(self) -> Int32Array:
        """Returns the prompt and the generated tokens: the cache content before the next token."""
        return np.concatenate([self.prompt, np.array(self.tokens, dtype=np.int32)]) if self.tokens else self.prompt

    def append(self, token: int, logprob: float) -> Finish | None:
        """Appends a token; returns the finish reason if it was the last one, else None."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.sampling.stop_tokens or self._ends_with_stop_string():
            return Finish.STOP
        if self.grammar is not None:
            self.grammar.accept(token)
            if not self.grammar.allowed.any():
                return Finish.STOP if self.grammar.is_complete else Finish.LENGTH
        return Finish.LENGTH if len(self.tokens) >= self.sampling.max_new_tokens else None

    def record(self, entries: TokenColumns) -> None:
        """Keeps the next token's entries, `[width]`, in the columns that the request asks for."""
        for column in self._widths():
            self.columns.setdefault(column, []).append(entries[column])

    def _ends_with_stop_string(self) -> bool:
        """Returns whether the last token completed a stop string; decodes only the tokens that can be part of it."""
        stops = self.sampling.stop_strings
        if not stops or self.decode is None:
            return False
        text = self.decode(np.array(self.tokens[-tokens_of_stop(stops) :], dtype=np.int32))
        return any(stop in text for stop in stops)

    def close_span(self, version: Version) -> None:
        """Assigns the tokens since the last call to `version`."""
        length = len(self.tokens) - sum(span.length for span in self.spans)
        if length:
            self.spans.append(VersionSpan(version=version, length=length))

    def reset(self) -> None:
        """Discards the generated tokens: a score must come from a single version."""
        self.tokens.clear()
        self.logprobs.clear()
        self.columns.clear()
        self.spans.clear()

    def generation(self, finish: Finish) -> Generation:
        """Returns the result for the caller. Requires that the last span is closed."""
        return Generation(
            tokens=np.array(self.tokens, dtype=np.int32),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            spans=tuple(self.spans),
            finish=finish,
            columns={
                column: self._column(column, width)
                for column, width in self._widths().items()
                if width is not None or column in self.columns
            },
            drafted=self.drafted,
            accepted=self.accepted,
        )

    def _widths(self) -> Mapping[TokenColumn, int | None]:
        """Returns the widths of the columns that the request asks for; None for that of the model."""
        sampling = self.sampling
        widths: dict[TokenColumn, int | None] = {}
        if sampling.top_tokens:
            widths |= dict.fromkeys(TOP_COLUMNS, sampling.top_tokens)
        if sampling.with_support:
            widths[TokenColumn.SUPPORT] = sampling.top_k
        if sampling.experts:
            widths[TokenColumn.EXPERTS] = None
        return widths

    def _column(self, column: TokenColumn, width: int | None) -> ColumnArray:
        recorded = self.columns.get(column, [])
        width = len(recorded[0]) if width is None else width
        array = np.full((len(self.tokens), width), column.absent, column.dtype)
        for row, entries in enumerate(recorded):
            array[row, : len(entries)] = entries[:width]
        return array


def random_stream_key(seed: int, request_id: str) -> int:
    """Returns the 64-bit key of the request's own stream of random numbers, independent of the batch."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8, key=(seed % 2**64).to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little")
