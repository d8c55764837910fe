"""Trajectories of one episode as a tree: which one started which."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.spans import POLICY_SPEAKER, Author, Span
from web.components import formats
from web.components.texts import visible
from web.trajectories.views import calls_summary, tone_of, versions_of

MAX_DEPTH = 6
"""Deepest level that is indented further."""

MAX_SEGMENTS = 300
"""Most parts of a bar; the rest of the trajectory is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens of one kind, drawn as a part of a bar."""

    kind: str
    """`model` for tokens that are trained here, `shared` for tokens of the policy that another trajectory trains,
    `read` for all others."""
    begin: float
    width: float
    """In thousandths of the longest trajectory of the episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeMember:
    """One trajectory of the tree."""

    ordinal: int
    name: str
    """Its role, or its position."""
    policy: str
    reward: str
    tone: str
    ending: str
    depth: int
    started: str
    """Episode and turn that started it; empty for a root."""
    is_shown: bool
    tokens: str
    """Tokens that are trained here, and those of other trajectories that it continues, in words."""
    versions: str
    calls: str
    """Recorded calls by outcome, in words; empty without any."""
    segments: tuple[Segment, ...]
    """Its tokens in order."""


def episode_tree(members: Sequence[SampledTrajectory], shown: int) -> tuple[EpisodeMember, ...]:
    """Returns the members in the order of a tree, parents first. shown: ordinal of the trajectory on the page.

    A member whose parent was not sampled is a root.
    """
    by_index = {member.index: member for member in sorted(members, key=lambda member: member.ordinal)}
    children: dict[int | None, list[int]] = {}
    for index in sorted(by_index):
        parent = by_index[index].parent
        is_known = parent is not None and parent in by_index and parent < index
        children.setdefault(parent if is_known else None, []).append(index)
    longest = max((member.tokens for member in members), default=0)
    names = names_of(by_index.values())
    tree: list[EpisodeMember] = []
    pending = [(index, 0) for index in reversed(children.get(None, []))]
    while pending:
        index, depth = pending.pop()
        tree.append(_member(by_index[index], names, depth=depth, shown=shown, longest=longest))
        pending += [(child, depth + 1) for child in reversed(children.get(index, []))]
    return tuple(tree)


def name_of(sample: SampledTrajectory) -> str:
    """Returns the role of a trajectory; its position in the episode when it has none."""
    return visible(sample.role) or f"trajectory {sample.index + 1}"


def names_of(members: Iterable[SampledTrajectory]) -> dict[int, str]:
    """Returns the names of an episode's trajectories by index; those of one role have their position too."""
    names = {member.index: name_of(member) for member in members}
    counts = Counter(names.values())
    return {index: name if counts[name] == 1 else f"{name} ({index + 1})" for index, name in names.items()}


def _member(
    sample: SampledTrajectory, names: Mapping[int, str], *, depth: int, shown: int, longest: int
) -> EpisodeMember:
    parent = names.get(sample.parent) if depth and sample.parent is not None else None
    turn = "" if sample.parent_turn is None else f" in turn {sample.parent_turn + 1}"
    shared = sum(span.length for span in sample.spans if span.speaker == POLICY_SPEAKER)
    trained = formats.several(sample.model_tokens, "token") + (" trained here" if shared else " trained")
    return EpisodeMember(
        ordinal=sample.ordinal,
        name=names[sample.index],
        policy=sample.policy,
        reward=formats.reward(sample.reward) if sample.failure is None else formats.MISSING,
        tone=tone_of(sample.reward, best=1.0, worst=0.0) if sample.failure is None else "bad",
        ending=sample.ending.label if sample.ending else "",
        depth=min(depth, MAX_DEPTH),
        started="" if parent is None else f"{'branches from' if shared else 'started by'} {parent}{turn}",
        is_shown=sample.ordinal == shown,
        tokens=f"{trained}, {formats.count(shared)} in another trajectory" if shared else trained,
        versions=versions_of(sample),
        calls=calls_summary(sample.call_outcomes),
        segments=_segments(sample, longest),
    )


def _segments(sample: SampledTrajectory, longest: int) -> tuple[Segment, ...]:
    runs = [(kind, sum(span.length for span in spans)) for kind, spans in groupby(sample.spans, key=_kind_of)][
        :MAX_SEGMENTS
    ]
    ends = list(accumulate((length for _, length in runs), initial=0))
    scale = 1000 / max(1, longest)
    return tuple(
        Segment(kind=kind, begin=begin * scale, width=length * scale)
        for (kind, length), begin in zip(runs, ends, strict=False)
    )


def _kind_of(span: Span) -> str:
    if span.author is Author.MODEL:
        return "model"
    return "shared" if span.speaker == POLICY_SPEAKER else "read"
