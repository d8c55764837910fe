"""One sampled trajectory as a conversation: who said what, with which version, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from astraflow.contract.reports import SampledTrajectory
from astraflow.contract.spans import Author, Span
from web.present import formats
from web.present.samples import tone_of, versions_of

FATES = {
    "buffered": "It waits in the buffer for a batch.",
    "trained": "Its group was trained on.",
    "evaluated": "It was made for an evaluation, never for training.",
    "stale": "Its group waited too long: it was begun with a version older than the staleness bound lets a batch have.",
    "failed": "Too many members of its group failed, so that the group was dropped.",
    "full": "Its policy's buffer was full while its trainer was stalled.",
    "informative": "The filter `informative` left its group out: its members scored alike, which teaches nothing.",
    "unrecorded": "The service was killed before it could note what became of its group.",
}
"""Why a group went where it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch that one version wrote."""

    text: str
    version: str
    tokens: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTurn:
    """What was read, or what was written in answer to it."""

    number: int
    """From 1, of the answers; of what is read, that of the answer to it."""
    is_model: bool
    who: str
    tokens: str
    versions: str
    took: str
    """How long it was written, or was waited for; empty when that is not known."""
    pieces: tuple[Piece, ...]
    """More than one where the weights were refreshed in the middle of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A named property."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The page of one trajectory."""

    ordinal: int
    group: str
    policy: str
    member: int
    reward: str
    tone: str
    why: str
    facts: tuple[Fact, ...]
    turns: tuple[ConversationTurn, ...]
    reference: str
    failure: str
    is_whole: bool
    """Whether it is known which text belongs to which turn."""


def conversation(sample: SampledTrajectory, names: Mapping[str, str]) -> Conversation:
    """names: node ids -> names."""
    failure = sample.failure
    return Conversation(
        ordinal=sample.ordinal,
        group=sample.group,
        policy=sample.policy,
        member=sample.member,
        reward=formats.MISSING if failure else formats.reward(sample.reward),
        tone="bad" if failure else tone_of(sample.reward, best=1.0, worst=0.0),
        why=why_of(sample),
        facts=_facts(sample, names.get(sample.node, sample.node)),
        turns=_turns(sample),
        reference=sample.reference_text,
        failure=f"It failed at {failure.boundary.value}: {failure.message}" if failure else "",
        is_whole=bool(sample.text_ends) or not sample.spans,
    )


def why_of(sample: SampledTrajectory) -> str:
    """What became of a trajectory's group, in a sentence."""
    if sample.step is not None:
        return f"{FATES['trained'][:-1]} in step {sample.step}."
    return FATES.get(sample.fate, f"The filter `{sample.fate}` left its group out.")


def staleness_of(sample: SampledTrajectory) -> int | None:
    """Versions between the one it was begun with and the one that its step began from; None before it is trained."""
    begun = [span.version for span in sample.spans if span.version is not None]
    return None if sample.step is None or not begun else max(0, sample.step - 1 - min(begun))


def _facts(sample: SampledTrajectory, node: str) -> tuple[Fact, ...]:
    stale = staleness_of(sample)
    each = sample.duration_s / sample.model_tokens if sample.model_tokens and sample.duration_s else None
    facts = [
        Fact(label="Node", value=formats.node_name(node), note=sample.node if sample.node != node else ""),
        Fact(label="Version", value=versions_of(sample)),
        Fact(
            label="Staleness",
            value=formats.MISSING if stale is None else formats.several(stale, "version"),
            note="" if stale is None else "between its first token and its step",
        ),
        Fact(
            label="Tokens",
            value=f"{formats.count(sample.model_tokens)} written",
            note=f"of {formats.count(sample.tokens)}" + (", cut at its length limit" if sample.is_truncated else ""),
        ),
        Fact(
            label="Took",
            value=formats.duration(sample.duration_s) if sample.duration_s else formats.MISSING,
            note="" if each is None else f"{formats.duration(each)} for each token written, tools and waiting included",
        ),
    ]
    if sample.attempt:
        facts.append(Fact(label="Try", value=formats.count(sample.attempt + 1), note="earlier ones failed"))
    facts += [Fact(label=name, value=f"{value:.4g}") for name, value in sample.metrics.items()]
    return tuple(facts)


def _turns(sample: SampledTrajectory) -> tuple[ConversationTurn, ...]:
    """Spans of one author after each other are one turn. Without ends, all that was written is one text."""
    if not sample.spans:
        return ()
    if len(sample.text_ends) != len(sample.spans):
        return _undivided(sample)
    whole = sample.prompt_text + sample.completion_text
    texts = [whole[begin:end] for begin, end in pairwise((0, *sample.text_ends))]
    turns: list[list[tuple[Span, str]]] = []
    for span, text in zip(sample.spans, texts, strict=True):
        if turns and turns[-1][0][0].author is span.author:
            turns[-1].append((span, text))
        else:
            turns.append([(span, text)])
    found: list[ConversationTurn] = []
    number = 0
    first = 0
    for pieces in turns:
        is_model = pieces[0][0].author is Author.MODEL
        number += not is_model or not found
        took = _took(sample, first)
        found.append(_turn(pieces, max(1, number), took=took, is_first=not found))
        first += len(pieces)
    return tuple(found)


def _took(sample: SampledTrajectory, first: int) -> str:
    """What the stretch took that begins with the span `first`, as far as its node told something that can be."""
    seconds = sample.span_s[first] if len(sample.span_s) == len(sample.spans) else 0.0
    return formats.duration(seconds) if isfinite(seconds) and seconds > 0 else ""


def _turn(pieces: list[tuple[Span, str]], number: int, *, took: str, is_first: bool) -> ConversationTurn:
    is_model = pieces[0][0].author is Author.MODEL
    return ConversationTurn(
        number=number,
        is_model=is_model,
        who="The policy wrote" if is_model else "Prompt" if is_first else "The policy read",
        tokens=formats.several(sum(span.length for span, _ in pieces), "token"),
        versions=", ".join(dict.fromkeys(f"v{span.version}" for span, _ in pieces if span.version is not None)),
        took=took,
        pieces=tuple(
            Piece(
                text=text,
                version=f"v{span.version}" if span.version is not None else "",
                tokens=formats.several(span.length, "token"),
            )
            for span, text in pieces
        ),
    )


def _undivided(sample: SampledTrajectory) -> tuple[ConversationTurn, ...]:
    parts = (("Prompt", sample.prompt_text, False), ("All the rest, read and written", sample.completion_text, True))
    return tuple(
        ConversationTurn(
            number=1,
            is_model=is_model,
            who=who,
            tokens="",
            versions=versions_of(sample) if is_model else "",
            took="",
            pieces=(Piece(text=text, version="", tokens=""),),
        )
        for who, text, is_model in parts
    )
