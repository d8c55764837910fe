"""Turns of a trajectory: what the policy wrote and read, by speaker, in blocks that pages can fold."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.spans import POLICY_SPEAKER, Author, Span
from web.components import formats
from web.components.texts import TextCutter, visible
from web.trajectories.views import versions_of

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


TURNS_SHOWN = 200
TURNS_SHOWN_OF_ALL = 2_000
"""Most turns of a page, at first and when all are requested."""

MAX_BLOCKS = 40
"""Most blocks of one piece; the rest of its text is one block."""

FOLDED_FROM = 320
"""Characters from which a block that can be folded is closed at first."""

MAX_PARSED_CHARS = 20_000
"""Longest tool call whose name is read."""

_KINDS = {"tool": "tool", "environment": "environment", "user": "environment", POLICY_SPEAKER: "shared"}
"""Kinds of turns by speaker; of all others `other`."""

_SPEAKERS = {
    "tool": "Tool result",
    "environment": "Environment",
    "user": "User",
    POLICY_SPEAKER: "The policy wrote; trained in another trajectory of the session",
}
"""Headings of turns by speaker."""

_TAGGED = re.compile(r"<(think|tool_call)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_PYTHON_CALL = re.compile(r"\s*([A-Za-z_][\w.]{0,60})\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Part of a turn with one meaning."""

    kind: str
    """`text`, `reasoning`, `call` or `result`; all but `text` can be folded."""
    title: str
    text: str
    size: str
    """Number of characters, in words."""
    is_open: bool
    hidden: int
    """Characters that are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text that one version wrote, or one speaker said, without interruption."""

    version: str
    tokens: str
    blocks: tuple[Block, ...]
    token_list: tuple[Token, ...] = ()
    """Tokens of the text, in the token view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Text that the policy read, or its answer."""

    number: int
    """Number of the answer, from 1; text that was read has the number of the answer that follows."""
    kind: str
    """`prompt`, `model`, `tool`, `environment`, `shared` for an answer that another trajectory of the session trains,
    or `other` for another policy."""
    speaker: str
    tokens: str
    versions: str
    duration: str
    """Time it took to write, or to wait for; empty when unknown."""
    reward: str
    """Reward of an answer; empty when only the whole is scored."""
    pieces: tuple[Piece, ...]
    """More than one where the weights changed in the middle of an answer."""

    @property
    def is_model(self) -> bool:
        """Whether the policy wrote it."""
        return self.kind == "model"


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A span with its text and its place."""

    place: int
    span: Span
    text: str
    begin: int
    """Characters before the text."""


def turns_of(sample: SampledTrajectory, *, cutter: TextCutter, window: TokenWindow | None) -> Iterator[Turn]:
    """Yields the turns: adjacent spans of one author and speaker form a turn. Without text ends the completion is one
    text. window: adds the tokens within it."""
    if len(sample.text_ends) != len(sample.spans):
        yield from _single_turn(sample, cutter)
        return
    answer = 0
    stretches = groupby(_stretches(sample), key=lambda stretch: (stretch.span.author, stretch.span.speaker))
    for (author, speaker), members in stretches:
        turn = list(members)
        is_model = author is Author.MODEL
        has_rewards = is_model and answer < len(sample.turn_rewards)
        yield Turn(
            number=answer + 1,
            kind=_kind(author, speaker, is_first=turn[0].place == 0),
            speaker=_speaker(author, speaker, is_first=turn[0].place == 0),
            tokens=formats.several(sum(stretch.span.length for stretch in turn), "token"),
            versions=", ".join(
                dict.fromkeys(f"v{stretch.span.version}" for stretch in turn if stretch.span.version is not None)
            ),
            duration=_duration_text(sample, turn[0].place),
            reward=formats.reward(sample.turn_rewards[answer]) if has_rewards else "",
            pieces=tuple(_piece(stretch, cutter, window) for stretch in turn),
        )
        answer += is_model


def _stretches(sample: SampledTrajectory) -> Iterator[_Stretch]:
    """Yields the spans with disjoint parts of the text, also when the ends are not ascending."""
    whole = sample.prompt_text + sample.completion_text
    begin = 0
    for index, (span, end) in enumerate(zip(sample.spans, sample.text_ends, strict=True)):
        end = max(begin, end)
        yield _Stretch(index, span, whole[begin:end], begin)
        begin = end


def _kind(author: Author, speaker: str, *, is_first: bool) -> str:
    if author is Author.MODEL:
        return "model"
    if not speaker:
        return "prompt" if is_first else "environment"
    return _KINDS.get(speaker, "other")


def _speaker(author: Author, speaker: str, *, is_first: bool) -> str:
    if author is Author.MODEL:
        return "The policy wrote"
    if not speaker:
        return "Prompt" if is_first else "The policy read"
    return _SPEAKERS.get(speaker, f"From {visible(speaker)}")


def _duration_text(sample: SampledTrajectory, first: int) -> str:
    """Returns the duration of the turn that begins with the span `first`; empty when the node reported no valid one."""
    seconds = sample.span_s[first] if len(sample.span_s) == len(sample.spans) else 0.0
    return formats.duration(seconds) if isfinite(seconds) and seconds > 0 else ""


def _piece(stretch: _Stretch, cutter: TextCutter, window: TokenWindow | None) -> Piece:
    span = stretch.span
    is_model = span.author is Author.MODEL
    tokens = window.take(span.length, stretch.begin, stretch.text) if window is not None and is_model else ()
    return Piece(
        version=f"v{span.version}" if span.version is not None else "",
        tokens=formats.several(span.length, "token"),
        blocks=() if tokens else tuple(_blocks(stretch.text, span, cutter)),
        token_list=tokens,
    )


def _blocks(text: str, span: Span, cutter: TextCutter) -> Iterator[Block]:
    if span.author is Author.CONTEXT and span.speaker != POLICY_SPEAKER:
        is_result = span.speaker == "tool"
        yield _block(text, "result" if is_result else "text", _first_line(text) if is_result else "", cutter)
        return
    end = 0
    for tagged, _ in zip(_TAGGED.finditer(text), range(MAX_BLOCKS), strict=False):
        if text[end : tagged.start()].strip():
            yield _block(text[end : tagged.start()], "text", "", cutter)
        is_call = tagged[1] == "tool_call"
        title = _call_title(tagged[2]) if is_call else "Reasoning"
        yield _block(tagged[2].strip("\n"), "call" if is_call else "reasoning", title, cutter)
        end = tagged.end()
    if text[end:].strip() or end == 0:
        yield _block(text[end:], "text", "", cutter)


def _block(text: str, kind: str, title: str, cutter: TextCutter) -> Block:
    shown, hidden = cutter.cut(text)
    return Block(
        kind=kind,
        title=title,
        text=shown,
        size=formats.several(len(text), "character"),
        is_open=len(text) < FOLDED_FROM,
        hidden=hidden,
    )


def _call_title(text: str) -> str:
    """Returns the called tool, where the call can be read."""
    try:
        name = json.loads(text).get("name") if len(text) < MAX_PARSED_CHARS else None
    except (AttributeError, RecursionError, ValueError):
        call_match = _PYTHON_CALL.match(text)
        name = call_match[1] if call_match else None
    return f"Tool call: {_first_line(name)}" if isinstance(name, str) and name else "Tool call"


def _first_line(text: str) -> str:
    """Returns the begin of the first line that has text."""
    line = next((line.strip() for line in text[:2000].splitlines() if line.strip()), "")
    return TextCutter().cut(line if len(line) <= 80 else f"{line[:79]}…")[0]


def _single_turn(sample: SampledTrajectory, cutter: TextCutter) -> Iterator[Turn]:
    if not sample.spans:
        return
    parts = (
        ("prompt", "Prompt", sample.prompt_text),
        ("model", "Everything else, read and written", sample.completion_text),
    )
    for kind, speaker, text in parts:
        block = _block(text, "text", "", cutter)
        yield Turn(
            number=1,
            kind=kind,
            speaker=speaker,
            tokens="",
            versions=versions_of(sample) if kind == "model" else "",
            duration="",
            reward="",
            pieces=(Piece(version="", tokens="", blocks=(block,)),),
        )
