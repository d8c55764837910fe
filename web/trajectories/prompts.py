"""The same prompt at several steps: one rollout of each, side by side, with the text that differs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from astraflow.contract.reports.queries import GroupQuery, SampledGroup
from astraflow.contract.reports.report import SampledTrajectory
from web.components import formats
from web.components.texts import visible
from web.trajectories.queries import RunSamples, members_of_group
from web.trajectories.views import LISTED_CHARS, tone_of, versions_of

MAX_GROUPS = 200
"""Most groups of a prompt."""

COMPARED = 3
"""Groups side by side: the first, the middle and the last one unless others are chosen."""

CHARS_COMPARED_EACH = 300
"""Longest text that is compared letter by letter; longer ones are compared word by word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Part of an answer."""

    text: str
    is_new: bool
    """Whether the answer beside it on the left does not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptColumn:
    """Rollout of one group."""

    at: int
    label: str
    """`step 80`, or `version 80` of an evaluation."""
    group: str
    summary: str
    mean: str
    ordinal: int
    reward: str
    tone: str
    versions: str
    terms: tuple[tuple[str, str], ...]
    parts: tuple[TextPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptHistory:
    """Groups of one prompt."""

    prompt: str
    reference: str
    steps: tuple[tuple[int, str], ...]
    """Step or version of each group, with its label and mean reward, oldest first."""
    columns: tuple[PromptColumn, ...]


async def prompt_history(samples: RunSamples, group: str, policy: str, chosen: Sequence[int]) -> PromptHistory | None:
    """Returns the history of a group's prompt; None for an unknown group. chosen: steps or versions to compare.

    Raises: AstraFlowError.
    """
    members = await members_of_group(samples, group, policy)
    if not members:
        return None
    query = GroupQuery(policy=members[0].policy, before=members[-1].ordinal + 1, limit=1)
    own = (await samples.source.groups(query)).groups
    dated = await _dated_groups(samples, own[0]) if own and own[0].prompt else {}
    if not dated and own:
        dated = {own[0].step_or_version or 0: own[0]}
    columns: list[PromptColumn] = []
    texts: list[str] = []
    for at in _compared(list(dated), chosen):
        shown = dated[at]
        typical = shown.typical(await members_of_group(samples, shown.group, shown.policy))
        if typical is not None:
            texts.append(typical.completion_text[:LISTED_CHARS])
            columns.append(_column(at, shown, typical, texts))
    return PromptHistory(
        prompt=visible(members[0].prompt_text[:LISTED_CHARS]),
        reference=visible(members[0].reference_text[:LISTED_CHARS]),
        steps=tuple((at, f"{_label(item)}, mean {formats.reward(item.reward_mean)}") for at, item in dated.items()),
        columns=tuple(columns),
    )


async def _dated_groups(samples: RunSamples, own: SampledGroup) -> dict[int, SampledGroup]:
    query = GroupQuery(policy=own.policy, flow=own.flow, prompt=own.prompt, limit=MAX_GROUPS)
    groups = (await samples.source.groups(query)).groups
    dated = {at: group for group in groups if (at := group.step_or_version) is not None}
    return dict(sorted(dated.items()))


def _compared(steps: Sequence[int], chosen: Sequence[int]) -> list[int]:
    known = sorted({at for at in chosen if at in steps})[:COMPARED]
    return known or sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []


def _column(at: int, group: SampledGroup, member: SampledTrajectory, texts: Sequence[str]) -> PromptColumn:
    """texts: of the columns so far, this one included."""
    return PromptColumn(
        at=at,
        label=_label(group),
        group=group.group,
        summary=f"{formats.several(group.trajectories, 'rollout')} stored"
        + (f", {group.failed} failed" if group.failed else ""),
        mean=formats.reward(group.reward_mean),
        ordinal=member.ordinal,
        reward=formats.reward(member.reward),
        tone=tone_of(member.reward, best=1.0, worst=0.0),
        versions=versions_of(member),
        terms=tuple((visible(name), f"{value:.4g}") for name, value in member.reward_terms.items()),
        parts=differing_parts(texts[-2] if len(texts) > 1 else texts[-1], texts[-1]),
    )


def _label(group: SampledGroup) -> str:
    return f"step {group.step}" if group.step is not None else f"version {group.version}"


def differing_parts(before: str, after: str) -> tuple[TextPart, ...]:
    """Returns a text in parts, of which those are new that the earlier text lacks.

    >>> [(part.text, part.is_new) for part in differing_parts("gahc", "gehc")]
    [('g', False), ('e', True), ('hc', False)]
    """
    is_short = max(len(before), len(after)) <= CHARS_COMPARED_EACH
    old, new = (list(text) if is_short else re.findall(r"\s+|\S+", text) for text in (before, after))
    parts: list[TextPart] = []
    for tag, _, _, begin, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        text = visible("".join(new[begin:end]))
        if text:
            parts.append(TextPart(text=text, is_new=tag != "equal"))
    return tuple(parts)
