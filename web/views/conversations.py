"""Page of one sampled trajectory: its turns, the versions that wrote them, and the outcome of its group."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from astraflow.contract.reports import SampledTrajectory
from astraflow.contract.spans import Author, Span
from web.views import formats
from web.views.samples import tone_of, versions_of

OUTCOME_TEXTS = {
    "buffered": "Its group is in the buffer, waiting for a batch.",
    "trained": "Its group was trained on.",
    "evaluated": "It belongs to an evaluation and is not used for training.",
    "stale": "Its group was dropped: it started with a version older than the staleness bound allows in a batch.",
    "failed": "Its group was dropped: too many of its members failed.",
    "full": "Its group was dropped: its policy's buffer was full while the trainer was stalled.",
    "informative": "The filter `informative` dropped its group: all members scored alike: nothing to learn.",
    "unrecorded": "The outcome of its group is unknown: the service was killed before it could record it.",
}
"""Sentence for each outcome of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text that one version wrote without interruption."""

    text: str
    version: str
    tokens: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTurn:
    """Text that the policy read, or its answer."""

    number: int
    """Number of the answer, from 1; text that was read has the number of the answer that follows."""
    is_model: bool
    speaker: str
    tokens: str
    versions: str
    duration: str
    """Time it took to write, or to wait for; empty when unknown."""
    pieces: tuple[Piece, ...]
    """More than one where the weights changed in the middle of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A named property."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """View model of the page of one trajectory."""

    ordinal: int
    group: str
    policy: str
    member: int
    reward: str
    tone: str
    outcome_sentence: str
    facts: tuple[Fact, ...]
    turns: tuple[ConversationTurn, ...]
    reference: str
    failure: str
    has_turn_boundaries: bool
    """Whether the sample records which text belongs to which turn."""


def conversation(sample: SampledTrajectory, names: Mapping[str, str]) -> Conversation:
    """Builds the view. names: node names by node id."""
    failure = sample.failure
    return Conversation(
        ordinal=sample.ordinal,
        group=sample.group,
        policy=sample.policy,
        member=sample.member,
        reward=formats.MISSING if failure else formats.reward(sample.reward),
        tone="bad" if failure else tone_of(sample.reward, best=1.0, worst=0.0),
        outcome_sentence=outcome_sentence(sample),
        facts=_facts(sample, names.get(sample.node, sample.node)),
        turns=_turns(sample),
        reference=sample.reference_text,
        failure=f"Failed at the boundary {failure.boundary.value}: {failure.message}" if failure else "",
        has_turn_boundaries=bool(sample.text_ends) or not sample.spans,
    )


def outcome_sentence(sample: SampledTrajectory) -> str:
    """Returns the outcome of a trajectory's group as a sentence."""
    if sample.step is not None:
        return f"{OUTCOME_TEXTS['trained'][:-1]} in step {sample.step}."
    return OUTCOME_TEXTS.get(sample.outcome, f"The filter `{sample.outcome}` dropped its group.")


def staleness_of(sample: SampledTrajectory) -> int | None:
    """Returns the versions between the oldest one that generated tokens and the step; None until trained."""
    versions = [span.version for span in sample.spans if span.version is not None]
    return None if sample.step is None or not versions else max(0, sample.step - 1 - min(versions))


def _facts(sample: SampledTrajectory, node: str) -> tuple[Fact, ...]:
    stale = staleness_of(sample)
    token_s = sample.duration_s / sample.model_tokens if sample.model_tokens and sample.duration_s else None
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
            value=f"{formats.count(sample.model_tokens)} generated",
            note=f"of {formats.count(sample.tokens)}" + (", cut at its length limit" if sample.is_truncated else ""),
        ),
        Fact(
            label="Took",
            value=formats.duration(sample.duration_s) if sample.duration_s else formats.MISSING,
            note=""
            if token_s is None
            else f"{formats.duration(token_s)} per generated token, including tools and waiting",
        ),
    ]
    if sample.attempt:
        facts.append(Fact(label="Attempt", value=formats.count(sample.attempt + 1), note="earlier attempts failed"))
    facts += [Fact(label=name, value=f"{value:.4g}") for name, value in sample.metrics.items()]
    return tuple(facts)


def _turns(sample: SampledTrajectory) -> tuple[ConversationTurn, ...]:
    """Returns the turns: adjacent spans of one author form a turn. Without text ends the completion is one text."""
    if not sample.spans:
        return ()
    if len(sample.text_ends) != len(sample.spans):
        return _single_turn(sample)
    whole = sample.prompt_text + sample.completion_text
    texts = [whole[begin:end] for begin, end in pairwise((0, *sample.text_ends))]
    turns: list[list[tuple[Span, str]]] = []
    for span, text in zip(sample.spans, texts, strict=True):
        if turns and turns[-1][0][0].author is span.author:
            turns[-1].append((span, text))
        else:
            turns.append([(span, text)])
    result: list[ConversationTurn] = []
    number = 0
    first = 0
    for pieces in turns:
        is_model = pieces[0][0].author is Author.MODEL
        number += not is_model or not result
        duration = _duration_text(sample, first)
        result.append(_turn(pieces, max(1, number), duration=duration, is_first=not result))
        first += len(pieces)
    return tuple(result)


def _duration_text(sample: SampledTrajectory, first: int) -> str:
    """Returns the duration of the turn that begins with the span `first`; empty when the node reported no valid one."""
    seconds = sample.span_s[first] if len(sample.span_s) == len(sample.spans) else 0.0
    return formats.duration(seconds) if isfinite(seconds) and seconds > 0 else ""


def _turn(pieces: list[tuple[Span, str]], number: int, *, duration: str, is_first: bool) -> ConversationTurn:
    is_model = pieces[0][0].author is Author.MODEL
    return ConversationTurn(
        number=number,
        is_model=is_model,
        speaker="The policy wrote" if is_model else "Prompt" if is_first else "The policy read",
        tokens=formats.several(sum(span.length for span, _ in pieces), "token"),
        versions=", ".join(dict.fromkeys(f"v{span.version}" for span, _ in pieces if span.version is not None)),
        duration=duration,
        pieces=tuple(
            Piece(
                text=text,
                version=f"v{span.version}" if span.version is not None else "",
                tokens=formats.several(span.length, "token"),
            )
            for span, text in pieces
        ),
    )


def _single_turn(sample: SampledTrajectory) -> tuple[ConversationTurn, ...]:
    parts = (("Prompt", sample.prompt_text, False), ("Everything else, read and written", sample.completion_text, True))
    return tuple(
        ConversationTurn(
            number=1,
            is_model=is_model,
            speaker=speaker,
            tokens="",
            versions=versions_of(sample) if is_model else "",
            duration="",
            pieces=(Piece(text=text, version="", tokens=""),),
        )
        for speaker, text, is_model in parts
    )
