"""Page of one sampled trajectory: its turns, the versions that wrote them, and the outcome of its group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from astraflow.contract.plugins import PluginKind
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.spans import Ending
from web.components import formats
from web.components.group_counts import drop_meaning
from web.components.texts import TextCutter, visible
from web.trajectories.episodes import name_of
from web.trajectories.turns import (
    TOKENS_PER_PAGE,
    TURNS_SHOWN,
    TURNS_SHOWN_OF_ALL,
    TokenWindow,
    Turn,
    has_tokens,
    turns_of,
)
from web.trajectories.views import tone_of, versions_of

OUTCOME_TEXTS = {
    "buffered": "Its group is in the buffer, waiting for a batch.",
    "trained": "Its group was trained on.",
    "evaluated": "It belongs to an evaluation and is not used for training.",
    "stale": "Its group was dropped: it started with a version older than the staleness bound allows in a batch.",
    "failed": "Its group was dropped: too many of its members failed.",
    "set_aside": "Its group was dropped: the steps on its batch ended the trainer repeatedly.",
    "full": "Its group was dropped: its policy's buffer was full while the trainer was stalled.",
    "unrecorded": "The outcome of its group is unknown: the service was killed before it could record it.",
}
"""Sentence for each outcome of a group."""

STATE = "state"
"""Label with the state of the environment."""

ENDING_TONES = {Ending.WON: "good", Ending.DONE: "good", Ending.LOST: "bad"}
"""Tones of endings; of all others `warn`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A named property."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPage:
    """Page of the token view: which of the tokens it shows."""

    begin: int
    end: int
    total: int
    previous: int | None
    following: int | None
    """First token of the page before and after; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """View model of the page of one trajectory."""

    ordinal: int
    group: str
    task: str
    name: str
    """Role, or position in its episode."""
    role: str
    policy: str
    member: int
    reward: str
    tone: str
    outcome_sentence: str
    facts: tuple[Fact, ...]
    ending: str
    """Reason for the end of an interaction, in words; empty for a single answer."""
    ending_tone: str
    terms: tuple[Fact, ...]
    """Terms of the reward."""
    labels: tuple[Fact, ...]
    state: str
    """State of the environment at the end."""
    turns: tuple[Turn, ...]
    hidden_turns: int
    """Turns that are left out."""
    is_cut: bool
    """Whether any text or turn is left out."""
    is_complete: bool
    """Whether all texts were requested."""
    has_tokens: bool
    tokens: TokenPage | None
    """Shown tokens in the token view; None in the text view."""
    reference: str
    failure: str
    has_turn_boundaries: bool
    """Whether the sample records which text belongs to which turn."""


def conversation(
    sample: SampledTrajectory,
    names: Mapping[str, str],
    *,
    kinds: Sequence[PluginKind] = (),
    is_complete: bool = False,
    first_token: int | None = None,
) -> Conversation:
    """Builds the view. names: node names by node id. kinds: known plugins, for the filter that dropped its group.
    is_complete: all texts are requested. first_token: of the token view; None for the text view."""
    failure = sample.failure
    cutter = TextCutter(is_complete=is_complete)
    tokens = None if first_token is None or not has_tokens(sample) else _token_page(sample, first_token)
    window = None if tokens is None else TokenWindow(sample, first=tokens.begin)
    every_turn = turns_of(sample, cutter=cutter, window=window)
    turns = tuple(islice(every_turn, TURNS_SHOWN_OF_ALL if is_complete or tokens else TURNS_SHOWN))
    hidden_turns = 0 if len(turns) < TURNS_SHOWN else sum(1 for _ in every_turn)
    blocks = [block for turn in turns for piece in turn.pieces for block in piece.blocks]
    return Conversation(
        ordinal=sample.ordinal,
        group=sample.group,
        task=sample.task,
        name=name_of(sample),
        role=sample.role,
        policy=sample.policy,
        member=sample.member,
        reward=formats.MISSING if failure else formats.reward(sample.reward),
        tone="bad" if failure else tone_of(sample.reward, best=1.0, worst=0.0),
        outcome_sentence=outcome_sentence(sample, kinds),
        facts=_facts(sample, names.get(sample.node, sample.node)),
        ending=sample.ending.label if sample.ending else "",
        ending_tone=ENDING_TONES.get(sample.ending, "warn") if sample.ending else "",
        terms=tuple(Fact(label=visible(name), value=f"{value:.4g}") for name, value in sample.reward_terms.items()),
        labels=tuple(
            Fact(label=visible(name), value=visible(text)) for name, text in sample.labels.items() if name != STATE
        ),
        state=visible(sample.labels.get(STATE, "")),
        turns=turns,
        hidden_turns=hidden_turns,
        is_cut=bool(hidden_turns) or any(block.hidden for block in blocks),
        is_complete=is_complete,
        has_tokens=has_tokens(sample),
        tokens=tokens,
        reference=cutter.cut(sample.reference_text)[0],
        failure=f"Failed at the boundary {failure.boundary.value}: {failure.message}" if failure else "",
        has_turn_boundaries=bool(sample.text_ends) or not sample.spans,
    )


def _token_page(sample: SampledTrajectory, first: int) -> TokenPage:
    total = len(sample.token_ends)
    begin = min(first, total - 1) // TOKENS_PER_PAGE * TOKENS_PER_PAGE
    end = min(total, begin + TOKENS_PER_PAGE)
    return TokenPage(
        begin=begin,
        end=end,
        total=total,
        previous=begin - TOKENS_PER_PAGE if begin else None,
        following=end if end < total else None,
    )


def outcome_sentence(sample: SampledTrajectory, kinds: Sequence[PluginKind]) -> str:
    """Returns the outcome of a trajectory's group as a sentence. kinds: as for `conversation`."""
    if sample.step is not None:
        return f"{OUTCOME_TEXTS['trained'][:-1]} in step {sample.step}."
    if sample.outcome in OUTCOME_TEXTS:
        return OUTCOME_TEXTS[sample.outcome]
    summary = drop_meaning(sample.outcome, kinds)
    description = f" Its description: {summary}." if summary else ""
    return f"The filter {sample.outcome} dropped its group.{description}"


def staleness_of(sample: SampledTrajectory) -> int | None:
    """Returns the number of versions between the oldest version that generated tokens and the step; None until
    trained."""
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
