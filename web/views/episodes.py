"""Trajectories of one episode as a tree: which one started which."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.reports import SampledTrajectory
from web.views import formats
from web.views.samples import tone_of
from web.views.texts import visible

MAX_DEPTH = 6
"""Deepest level that is indented further."""


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
    """Where it was started; empty for a root."""
    is_shown: bool


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
    tree: list[EpisodeMember] = []
    pending = [(index, 0) for index in reversed(children.get(None, []))]
    while pending:
        index, depth = pending.pop()
        tree.append(_member(by_index[index], by_index, depth=depth, shown=shown))
        pending += [(child, depth + 1) for child in reversed(children.get(index, []))]
    return tuple(tree)


def name_of(sample: SampledTrajectory) -> str:
    """Returns the role of a trajectory; its position in the episode when it has none."""
    return visible(sample.role) or f"trajectory {sample.index + 1}"


def _member(
    sample: SampledTrajectory, by_index: dict[int, SampledTrajectory], *, depth: int, shown: int
) -> EpisodeMember:
    parent = by_index.get(sample.parent) if depth and sample.parent is not None else None
    turn = "" if sample.parent_turn is None else f" in turn {sample.parent_turn + 1}"
    return EpisodeMember(
        ordinal=sample.ordinal,
        name=name_of(sample),
        policy=sample.policy,
        reward=formats.reward(sample.reward) if sample.failure is None else formats.MISSING,
        tone=tone_of(sample.reward, best=1.0, worst=0.0) if sample.failure is None else "bad",
        ending=sample.ending.label if sample.ending else "",
        depth=min(depth, MAX_DEPTH),
        started="" if parent is None else f"started by {name_of(parent)}{turn}",
        is_shown=sample.ordinal == shown,
    )
