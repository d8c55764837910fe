"""Sampled trajectories, asked of who knows them: a page, how their rewards are spread, a group, and one of them."""

from dataclasses import dataclass, replace

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.lookups import RewardQuery, RewardSpread, TrajectoryPage, TrajectoryQuery
from astraflow.contract.reports import SampledTrajectory
from web.present.sample_filter import SampleFilter
from web.present.samples import SampledGroup, grouped
from web.reading.kept_runs import Told

PAGE_SAMPLES = 48
GROUP_MEMBERS = 200
"""Of a group, at most so many are shown."""
BINS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """What was asked for and what was found: whole groups, newest first."""

    asked: SampleFilter
    groups: tuple[SampledGroup, ...] = ()
    spread: RewardSpread | None = None
    """Of all that the filter lets through, whatever their rewards."""
    older: int | None = None
    """`before` of the next page; None on the last."""
    newer: int | None = None
    """`after` of the page before; None on the first."""
    standing: str = ""
    """What is said of a record; empty for a run that goes on."""
    problem: str = ""


async def sample_page(told: Told, asked: SampleFilter) -> SamplePage:
    """The page; whatever is said instead is the page's problem."""
    try:
        page = await _whole_groups(told, asked)
        spread = await reward_spread(told, asked)
    except AstraFlowError as problem:
        return SamplePage(asked=asked, standing=told.standing, problem=str(problem))
    found = page.trajectories
    return SamplePage(
        asked=asked,
        groups=grouped(found, told.names),
        spread=spread,
        standing=told.standing,
        older=found[-1].ordinal if found and page.has_older else None,
        newer=found[0].ordinal if found and page.has_newer else None,
    )


async def reward_spread(told: Told, asked: SampleFilter) -> RewardSpread:
    """How rewards are spread over all that the filter lets through but for its rewards. Raises: AstraFlowError."""
    whole = replace(asked, min_reward=None, max_reward=None, before=None, after=None)
    return await told.source.rewards(RewardQuery(matching=whole.query(limit=1), at_most=BINS))


async def members_of(told: Told, group: str, policy: str) -> tuple[SampledTrajectory, ...]:
    """What is kept of a group, in the order of its members. Raises: AstraFlowError."""
    found: list[SampledTrajectory] = []
    query = TrajectoryQuery(group=group, policy=policy, limit=GROUP_MEMBERS)
    while True:
        page = await told.source.trajectories(query)
        found += page.trajectories
        if not page.has_older or len(found) >= GROUP_MEMBERS:
            return tuple(sorted(found, key=lambda one: one.ordinal))
        query = replace(query, before=found[-1].ordinal)


async def one_sample(told: Told, ordinal: int) -> SampledTrajectory | None:
    """The trajectory of that ordinal; None when it is not kept (any more). Raises: AstraFlowError."""
    page = await told.source.trajectories(TrajectoryQuery(before=ordinal + 1, limit=1))
    found = page.trajectories
    return found[0] if found and found[0].ordinal == ordinal else None


async def neighbours(told: Told, asked: SampleFilter, ordinal: int) -> tuple[int | None, int | None]:
    """Ordinals of the next older and the next newer trajectory that the filter lets through. Raises: AstraFlowError."""
    older = await told.source.trajectories(replace(asked, before=ordinal, after=None).query(limit=1))
    newer = await told.source.trajectories(replace(asked, before=None, after=ordinal).query(limit=1))
    return (
        older.trajectories[0].ordinal if older.trajectories else None,
        newer.trajectories[-1].ordinal if newer.trajectories else None,
    )


async def _whole_groups(told: Told, asked: SampleFilter) -> TrajectoryPage:
    """The page may end inside a group: fetch the rest of it, so that no group is torn over two pages."""
    query = asked.query(limit=PAGE_SAMPLES)
    page = await told.source.trajectories(query)
    found = page.trajectories
    if asked.after is not None and page.has_newer:
        whole = replace(query, group=found[0].group, policy=found[0].policy, after=found[0].ordinal)
        rest = await told.source.trajectories(whole)
        found = _in_order((*rest.trajectories, *found))
        return replace(page, trajectories=found, has_newer=await _is_any(told, replace(asked, after=found[0].ordinal)))
    if asked.after is None and page.has_older:
        whole = replace(query, group=found[-1].group, policy=found[-1].policy, before=found[-1].ordinal)
        rest = await told.source.trajectories(whole)
        found = _in_order((*found, *rest.trajectories))
        more = replace(asked, before=found[-1].ordinal)
        return replace(page, trajectories=found, has_older=await _is_any(told, more))
    return page


async def _is_any(told: Told, asked: SampleFilter) -> bool:
    return bool((await told.source.trajectories(asked.query(limit=1))).trajectories)


def _in_order(found: tuple[SampledTrajectory, ...]) -> tuple[SampledTrajectory, ...]:
    return tuple(sorted(found, key=lambda sample: -sample.ordinal))
