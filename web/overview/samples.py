"""Samples of a training step for the first screen: a good and a bad rollout, and a prompt whose answers changed."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.queries import (
    GroupPage,
    GroupQuery,
    SampledGroup,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import SampledTrajectory
from web.components import formats
from web.components.texts import visible

STEP_MEMBERS = 200
"""Most trajectories of a step among which the good and the bad one are chosen."""

COMPARED_PROMPTS = 8
"""Prompts with samples of several steps among which the changed one is chosen."""

COMPARED_GROUPS = 100

SHOWN_CHARS = 400


class StepSource(Protocol):
    """Interface of the source of samples."""

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Returns sampled trajectories."""

    async def groups(self, query: GroupQuery) -> GroupPage:
        """Returns groups of sampled trajectories."""

    async def sample_index(self, query: SampleIndexQuery) -> SampleIndex:
        """Returns the prompts with samples of several steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One rollout."""

    ordinal: int
    group: str
    step: str
    """`step 80`, or `version 80` of an evaluation."""
    prompt: str
    completion: str
    reference: str
    reward: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """Samples of one step; empty before the first trained sample."""

    step: int | None = None
    """Step of the samples; the nearest one to the requested step that has some."""
    good: StepSample | None = None
    bad: StepSample | None = None
    earlier: StepSample | None = None
    """The same prompt as `later`, at the earliest step."""
    later: StepSample | None = None
    change: str = ""
    """Mean rewards of the two groups, in words."""
    problem: str = ""
    """Error of the source; empty without one."""


async def step_samples(source: StepSource, policy: str, step: int | None) -> StepSamples:
    """Returns the samples of a step, or of the nearest one that has some; None: of the newest."""
    try:
        nearest = await _nearest_step(source, policy, step)
        if nearest is None:
            return StepSamples()
        good, bad = await _good_and_bad(source, policy, nearest)
        earlier, later, change = await _changed(source, policy, step)
    except AstraFlowError as problem:
        return StepSamples(problem=str(problem))
    return StepSamples(step=nearest, good=good, bad=bad, earlier=earlier, later=later, change=change)


async def _nearest_step(source: StepSource, policy: str, step: int | None) -> int | None:
    newest = TrajectoryQuery(policy=policy, first_step=0, last_step=step, limit=1)
    queries = [newest] if step is None else [newest, replace(newest, first_step=step, last_step=None, after=0)]
    for query in queries:
        page = await source.trajectories(query)
        if page.trajectories:
            return page.trajectories[0].step
    return None


async def _good_and_bad(source: StepSource, policy: str, step: int) -> tuple[StepSample | None, StepSample | None]:
    """Returns the best and the worst rollout of a step; where all scored alike, the other one is of an earlier step."""
    page = await source.trajectories(TrajectoryQuery(policy=policy, step=step, limit=STEP_MEMBERS))
    ranked = sorted(
        (member for member in page.trajectories if member.failure is None), key=lambda member: member.reward
    )
    if not ranked:
        return None, None
    worst, best = ranked[0], ranked[-1]
    if worst.reward < best.reward:
        return _sample(best), _sample(worst)
    earlier = TrajectoryQuery(policy=policy, first_step=0, last_step=step, limit=1)
    lower = await source.trajectories(replace(earlier, max_reward=math.nextafter(best.reward, -math.inf)))
    if lower.trajectories:
        return _sample(best), _sample(lower.trajectories[0])
    higher = await source.trajectories(replace(earlier, min_reward=math.nextafter(best.reward, math.inf)))
    if higher.trajectories:
        return _sample(higher.trajectories[0]), _sample(worst)
    return _sample(best), None


async def _changed(
    source: StepSource, policy: str, step: int | None
) -> tuple[StepSample | None, StepSample | None, str]:
    """Returns a rollout of an earlier and one of the newest group of the prompt that changed most since a step; None:
    since its first group."""
    index = await source.sample_index(SampleIndexQuery(policy=policy, limit=COMPARED_PROMPTS))
    pairs = []
    for prompt in index.prompts:
        query = GroupQuery(policy=policy, prompt=prompt.prompt, flow=prompt.flow, limit=COMPARED_GROUPS)
        pairs += _ends((await source.groups(query)).groups, step)
    if not pairs:
        return None, None, ""
    change, first, last = max(pairs, key=lambda pair: abs(pair[0]))
    means = f"mean {formats.reward(first.reward_mean)} to {formats.reward(last.reward_mean)}"
    return (await _typical(source, first)), (await _typical(source, last)), means if change else f"steady, {means}"


def _ends(groups: Sequence[SampledGroup], step: int | None) -> list[tuple[float, SampledGroup, SampledGroup]]:
    """Returns the change of the mean reward from the group at a step, or the nearest before, to the newest group; none
    without an earlier one. None: from the first group."""
    dated = sorted(
        (
            (at, group)
            for group in groups
            if (at := group.step_or_version) is not None and group.reward_mean is not None
        ),
        key=lambda pair: pair[0],
    )
    if not dated:
        return []
    last_at, last = dated[-1]
    until_step = [pair for pair in dated if step is not None and pair[0] <= step]
    first_at, first = until_step[-1] if until_step else dated[0]
    return [((last.reward_mean or 0.0) - (first.reward_mean or 0.0), first, last)] if first_at < last_at else []


async def _typical(source: StepSource, group: SampledGroup) -> StepSample | None:
    query = TrajectoryQuery(policy=group.policy, group=group.group, limit=STEP_MEMBERS)
    typical = group.typical((await source.trajectories(query)).trajectories)
    if typical is None:
        return None
    return replace(_sample(typical), step=f"version {group.version}") if group.step is None else _sample(typical)


def _sample(member: SampledTrajectory) -> StepSample:
    question = json.loads(member.prompt_fields or "{}").get("question")
    return StepSample(
        ordinal=member.ordinal,
        group=member.group,
        step=f"step {member.step}",
        prompt=_shown(question if isinstance(question, str) else member.prompt_text),
        completion=_shown(member.completion_text),
        reference=_shown(member.reference_text),
        reward=formats.reward(member.reward),
    )


def _shown(text: str) -> str:
    return visible(formats.shortened(text.strip(), at_most=SHOWN_CHARS))
