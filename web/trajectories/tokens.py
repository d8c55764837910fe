"""Tokens that a policy wrote, with their log-probabilities, for the token view of a trajectory."""

import math
from dataclasses import dataclass

from astraflow.contract.reports.report import SampledTrajectory
from web.components.texts import visible

TOKENS_PER_PAGE = 4_000

_LEVELS = (0.9, 0.5, 0.2, 0.05, 0.005)
"""Probability from which a token has level 0, 1, ...; less probable ones have the last level."""

LEGEND = ("90% or more", "50% or more", "20% or more", "5% or more", "0.5% or more", "less")

NO_TEXT = "\N{OPEN BOX}"
"""Shown for a token without text of its own: a special token, or a part of the next character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token."""

    text: str
    level: str
    """0 for the most probable to 5; empty when the log-probability is unknown."""
    logprob: float | None


class TokenWindow:
    """Tokens of one page of the token view: of those that the policy wrote, `TOKENS_PER_PAGE` from `first`."""

    def __init__(self, sample: SampledTrajectory, *, first: int) -> None:
        """first: index of the first shown token."""
        self._ends = sample.token_ends
        self._logprobs = sample.logprobs
        self._first = first
        self._index = 0

    def take(self, count: int, begin: int, text: str) -> tuple[Token, ...]:
        """Returns the shown tokens among the next `count` ones. text: theirs, after `begin` characters."""
        tokens = []
        end = 0
        for index in range(self._index, self._index + count):
            start, end = end, min(len(text), max(end, self._ends[index] - begin))
            if self._first <= index < self._first + TOKENS_PER_PAGE:
                tokens.append(_token(text[start:end], self._logprobs[index]))
        self._index += count
        return tuple(tokens)


def has_tokens(sample: SampledTrajectory) -> bool:
    """Returns whether each token that the policy wrote has its place and its log-probability."""
    return bool(sample.token_ends) and len(sample.token_ends) == len(sample.logprobs) == sample.model_tokens


def _token(text: str, logprob: float) -> Token:
    shown = visible(text).replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n") or NO_TEXT
    if not math.isfinite(logprob):
        return Token(text=shown, level="", logprob=None)
    probability = math.exp(min(0.0, logprob))
    level = next((level for level, least in enumerate(_LEVELS) if probability >= least), len(_LEVELS))
    return Token(text=shown, level=str(level), logprob=round(logprob, 4))
