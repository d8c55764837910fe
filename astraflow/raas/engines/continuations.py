"""Parts of aborted generations that another request can continue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from astraflow.contract.rollouts.generation import Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.token_columns import section
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models import build_tokenizer
from astraflow.models.tokenizers import ChatTokenizer

Decode: TypeAlias = Callable[[Int32Array], str]
"""Returns the text of tokens, special tokens included."""

INCOMPLETE_TOKENS = 4
"""Number of first tokens that may decode differently without their predecessors: parts of a character, a space."""
_WINDOW_TOKENS = 16
"""Last tokens of an aborted generation among which a safe end is searched, if it has stop strings."""
_INCOMPLETE_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class ModelDecoder:
    """Text of tokens of a model. The tokenizer is built at the first call, which blocks."""

    def __init__(self, model: Mapping[str, Any]) -> None:
        """model: spec as in `build_tokenizer`."""
        self._model = model
        self._tokenizer: ChatTokenizer | None = None

    def __call__(self, tokens: Int32Array) -> str:
        """Returns the text, special tokens included."""
        if self._tokenizer is None:
            self._tokenizer = build_tokenizer(self._model)
        return self._tokenizer.decode(tokens, keep_special_tokens=True)


def continuable(begun: Generation, sampling: Sampling, decode: Decode) -> Generation | None:
    """Returns the first part of an aborted generation that another request can continue; None to start anew.

    An engine applies a grammar to the tokens of one request, and searches stop strings in them. So a generation with a
    grammar starts anew, and one with stop strings is cut where no stop string has begun. The cut is at the first safe
    end among the last tokens: whether an end is safe depends on the tokens before it only, so the tokens that remain
    have the distribution that they were sampled from. The last safe end would depend on the tokens that are dropped.
    """
    if sampling.json_schema or sampling.regex:
        return None
    if not sampling.stop_strings:
        return begun
    total = len(begun.tokens)
    ends = range(max(0, total - _WINDOW_TOKENS), total + 1)
    end = next((end for end in ends if _is_safe_end(begun.tokens[:end], sampling.stop_strings, decode)), 0)
    return _cut(begun, end) if end else None


def tokens_of_stop(stops: Sequence[str]) -> int:
    """Returns the number of last tokens that contain every stop string which ends with them."""
    return max(len(stop.encode()) for stop in stops) + INCOMPLETE_TOKENS  # a token is at least one byte


def _is_safe_end(tokens: Int32Array, stops: Sequence[str], decode: Decode) -> bool:
    """Returns whether the text ends neither with the beginning of a stop string nor inside a character."""
    text = decode(tokens[-tokens_of_stop(stops) :])
    beginnings = tuple(stop[:length] for stop in stops for length in range(1, len(stop)))
    return not text.endswith((*beginnings, _INCOMPLETE_CHARACTER))


def _cut(generation: Generation, length: int) -> Generation:
    spans: list[VersionSpan] = []
    remaining = length
    for span in generation.spans:
        if remaining:
            spans.append(replace(span, length=min(span.length, remaining)))
            remaining -= spans[-1].length
    return replace(
        generation,
        tokens=generation.tokens[:length],
        logprobs=generation.logprobs[:length],
        spans=tuple(spans),
        columns=section(generation.columns, 0, length),
    )
