"""Request to an engine and its result: token ids in; token ids, logprobs and version spans out."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.token_columns import (
    DEFAULT_SUPPORT,
    MAX_SUPPORT,
    TokenColumn,
    TokenColumns,
    check_columns,
    joined_columns,
)
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array

GREEDY_TEMPERATURE: Final = 0.01
"""Temperature below which only the most likely token is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters. Logprobs always come from the distribution that was sampled from."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Number of most likely tokens to sample from; 0: all."""
    min_p: float = 0.0
    """Smallest probability of a sampled token, relative to the most likely token; 0: no limit."""
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end the generation. The token itself is part of the result."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end the generation; the tokens of the text are part of the result."""
    json_schema: str = ""
    """JSON schema that the text must match, as JSON; empty: none. Excludes `regex`."""
    regex: str = ""
    """Regular expression that the text must match; empty: none."""
    seed: int | None = None
    """Seed of the sampling; None: chosen by the engine."""
    top_tokens: int = 0
    """Number of most likely tokens that are recorded with their logprobs for each token; 0: none."""
    with_support: bool = False
    """Records the kept set of each token (`TokenColumn.SUPPORT`); `top_k` is then 1 to `MAX_SUPPORT`."""
    experts: bool = False
    """Records the experts that computed each token, in a mixture of experts."""

    @property
    def is_full_distribution(self) -> bool:
        """True if every token can be sampled: a trainer recomputes the logprobs with the temperature alone."""
        is_unfiltered = self.top_p == 1 and self.top_k == 0 and self.min_p == 0
        return is_unfiltered and self.temperature >= GREEDY_TEMPERATURE and not (self.json_schema or self.regex)

    def recording_support(self) -> "Sampling":
        """Returns the sampling with recorded kept sets, of `DEFAULT_SUPPORT` tokens at most where there is no `top_k`;
        the same sampling where every token can be sampled, or `top_k` is above `MAX_SUPPORT`.

        At a temperature of almost 0 only the most likely token is kept, as any temperature then samples it alone.
        """
        if self.is_full_distribution or self.top_k > MAX_SUPPORT:
            return self
        if self.temperature < GREEDY_TEMPERATURE:
            return replace(self, temperature=1.0, top_k=1, with_support=True)
        return replace(self, top_k=self.top_k or DEFAULT_SUPPORT, with_support=True)


class Finish(Enum):
    """Reason for the end of a generation."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    """Interrupted by a pause or an abort. The result holds the tokens generated so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """`length` consecutive tokens that one version wrote."""

    version: Version
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Output of the model. tokens: int32 `[n]`; logprobs: float32 `[n]`; the spans cover all n."""

    tokens: Int32Array
    logprobs: Float32Array
    spans: tuple[VersionSpan, ...]
    finish: Finish
    columns: TokenColumns = field(default_factory=dict)
    """Requested columns of the tokens, `[n, width]` each."""
    drafted: int = 0
    """Tokens that the engine drafted and verified. Count; 0 where it does not say."""
    accepted: int = 0
    """Drafted tokens among the tokens. Count."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs) or sum(span.length for span in self.spans) != len(self.tokens):
            raise InvalidInput(
                "cannot build a generation: tokens, logprobs and spans differ in length; "
                "give one logprob per token and spans that cover all tokens",
                code="generation.length_mismatch",
            )
        if not 0 <= self.accepted <= self.drafted:
            raise InvalidInput(
                f"cannot build a generation: {self.accepted} of {self.drafted} drafted tokens were accepted; "
                "count those that were drafted and kept",
                code="generation.invalid_drafts",
            )
        if self.columns:
            check_columns(self.columns, sampled=self.tokens)

    @property
    def has_support(self) -> bool:
        """True if the kept set of every token is recorded."""
        support = self.columns.get(TokenColumn.SUPPORT)
        return support is not None and bool((support >= 0).any(1).all())


def joined(begun: Generation, rest: Generation) -> Generation:
    """Joins an aborted generation and its continuation into one."""
    spans = [*begun.spans]
    for span in rest.spans:
        if spans and spans[-1].version == span.version:
            spans[-1] = replace(span, length=spans[-1].length + span.length)
        else:
            spans.append(span)
    return Generation(
        tokens=np.concatenate([begun.tokens, rest.tokens]),
        logprobs=np.concatenate([begun.logprobs, rest.logprobs]),
        spans=tuple(spans),
        finish=rest.finish,
        columns=joined_columns([(begun.columns, len(begun.tokens)), (rest.columns, len(rest.tokens))]),
        drafted=begun.drafted + rest.drafted,
        accepted=begun.accepted + rest.accepted,
    )
