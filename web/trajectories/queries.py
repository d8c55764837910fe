"""Queries of sampled trajectories: a page, the reward histogram, a group, and a single trajectory."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from astraflow.client.offline_run import OfflineRun
from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.plugins import PluginKind
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.queries import (
    EventPage,
    EventQuery,
    GroupPage,
    GroupQuery,
    RewardHistogram,
    RewardQuery,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.runtime.folders.run_folders import RunFolder
from web.database.tables import RunRecord
from web.history.report_json import report_from_json
from web.requests.run_lookup import ShownRun
from web.trajectories.data_sets import LabelledRollout, rollout_of
from web.trajectories.filters import SampleFilter
from web.trajectories.views import GroupKey, SampledGroup, group_samples

SAMPLES_PER_PAGE = 48
MAX_GROUP_MEMBERS = 200
"""Maximum number of members of a group that are shown."""
HISTOGRAM_BINS = 24
NEAR_STEPS = 9
"""Steps around the shown one among which the previous and the next one are found."""
MAX_SAVED = 20_000
"""Most trajectories of a filter that become a data set."""
SAVED_PAGE = 500


class SampleSource(Protocol):
    """Interface of a source: the client of the control plane, or of a run directory."""

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Returns sampled trajectories."""

    async def rewards(self, query: RewardQuery) -> RewardHistogram:
        """Returns the histogram of their rewards."""

    async def events(self, query: EventQuery) -> EventPage:
        """Returns events of the whole run."""

    async def groups(self, query: GroupQuery) -> GroupPage:
        """Returns their groups, with statistics."""

    async def sample_index(self, query: SampleIndexQuery) -> SampleIndex:
        """Returns the steps and the prompts with groups."""

    async def evaluations(self, *, before: int | None = None, limit: int = 20) -> tuple[EvaluationReport, ...]:
        """Returns evaluation rounds, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSamples:
    """Source of a run's samples with the data to display them."""

    source: SampleSource
    node_names: Mapping[str, str]
    """Node names by node id."""
    record_note: str
    """Note about a recorded run; empty for a live run."""
    plugin_kinds: Sequence[PluginKind] = ()
    """Known plugins; their filters are among the outcomes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """Filtered page of whole groups, newest first."""

    filters: SampleFilter
    groups: tuple[SampledGroup, ...] = ()
    spread: RewardHistogram | None = None
    """Histogram of all trajectories that match the filter, regardless of its reward bounds."""
    term_spread: RewardHistogram | None = None
    """The same of the filter's reward term, regardless of the term's bounds; None without a term."""
    older: int | None = None
    """`before` of the next page; None on the last page."""
    newer: int | None = None
    """`after` of the previous page; None on the first page."""
    steps: tuple[int, ...] = ()
    """Steps with samples near the shown step; empty if no step is chosen."""
    requested_step: int | None = None
    """Step of the address, if it has no samples: the page shows the nearest one that has some. None otherwise."""
    record_note: str = ""
    """Note about a recorded run; empty for a live run."""
    problem: str = ""
    problem_code: str = ""
    """Code of the error behind `problem`."""

    def neighbour(self, *, is_next: bool) -> int | None:
        """Returns the next or the previous step with samples; None without one."""
        step = self.filters.step
        if step is None:
            return None
        if is_next:
            return min((other for other in self.steps if other > step), default=None)
        return max((other for other in self.steps if other < step), default=None)


async def sample_page(samples: RunSamples, filters: SampleFilter) -> SamplePage:
    """Returns the page; a failure becomes its `problem`. A step without samples is replaced by the nearest one."""
    requested = filters.step
    steps: tuple[int, ...] = ()
    try:
        if requested is not None:
            index = SampleIndexQuery(policy=filters.policy, near=requested, limit=NEAR_STEPS)
            steps = (await samples.source.sample_index(index)).steps
            nearest = min(steps, key=lambda step: abs(step - requested), default=requested)
            filters = replace(filters, step=nearest)
        page = await _page_of_whole_groups(samples, filters)
        spread = await reward_spread(samples, filters)
        term_spread = await reward_spread(samples, filters, of_term=True) if filters.term else None
        whole = await _whole_groups(samples, page.trajectories) if filters.hides_members else {}
    except AstraFlowError as error:
        return SamplePage(filters=filters, record_note=samples.record_note, problem=str(error), problem_code=error.code)
    trajectories = page.trajectories
    return SamplePage(
        filters=filters,
        groups=group_samples(trajectories, samples.node_names, whole=whole),
        spread=spread,
        term_spread=term_spread,
        steps=steps,
        requested_step=requested if requested != filters.step else None,
        record_note=samples.record_note,
        older=trajectories[-1].ordinal if trajectories and page.has_older else None,
        newer=trajectories[0].ordinal if trajectories and page.has_newer else None,
    )


async def reward_spread(samples: RunSamples, filters: SampleFilter, *, of_term: bool = False) -> RewardHistogram:
    """Returns the reward histogram of the filter without its reward bounds, or that of its reward term without the
    term's bounds. Raises: AstraFlowError."""
    every = replace(filters, before=None, after=None)
    unbounded = (
        replace(every, min_term=None, max_term=None) if of_term else replace(every, min_reward=None, max_reward=None)
    )
    term = filters.term if of_term else ""
    matching = unbounded.query(limit=1)
    return await samples.source.rewards(RewardQuery(matching=matching, max_bins=HISTOGRAM_BINS, term=term))


async def _whole_groups(
    samples: RunSamples, shown: Sequence[SampledTrajectory]
) -> Mapping[GroupKey, Sequence[SampledTrajectory]]:
    """Returns all members of the groups of some trajectories. Raises: AstraFlowError."""
    keys = list(dict.fromkeys((sample.group, sample.policy) for sample in shown))
    groups = await asyncio.gather(*(members_of_group(samples, group, policy) for group, policy in keys))
    return dict(zip(keys, groups, strict=True))


async def members_of_group(samples: RunSamples, group: str, policy: str) -> tuple[SampledTrajectory, ...]:
    """Returns the stored members of a group, by ordinal. Raises: AstraFlowError."""
    return await _members(samples, TrajectoryQuery(group=group, policy=policy, limit=MAX_GROUP_MEMBERS))


async def members_of_episode(samples: RunSamples, task: str) -> tuple[SampledTrajectory, ...]:
    """Returns the stored trajectories of a task's episode with their recorded calls, of all policies, by ordinal.

    Raises: AstraFlowError.
    """
    return await _members(samples, TrajectoryQuery(task=task, with_calls=True, limit=MAX_GROUP_MEMBERS))


async def _members(samples: RunSamples, query: TrajectoryQuery) -> tuple[SampledTrajectory, ...]:
    members: list[SampledTrajectory] = []
    while True:
        page = await samples.source.trajectories(query)
        members += page.trajectories
        if not page.has_older or len(members) >= MAX_GROUP_MEMBERS:
            return tuple(sorted(members, key=lambda member: member.ordinal))
        query = replace(query, before=members[-1].ordinal)


async def rollouts_of(
    samples: RunSamples, filters: SampleFilter, labelled: Sequence[LabelledRollout]
) -> list[LabelledRollout]:
    """Returns the trajectories of a filter as rollouts, oldest first, at most `MAX_SAVED`. labelled: those with labels,
    which replace the stored ones. Raises: AstraFlowError."""
    by_ordinal = {rollout.rollout.ordinal: rollout for rollout in labelled}
    query = replace(filters, before=None, after=None).query(limit=SAVED_PAGE)
    rollouts: list[LabelledRollout] = []
    while True:
        page = await samples.source.trajectories(query)
        rollouts += [
            by_ordinal.get(sample.ordinal, LabelledRollout(rollout=rollout_of(sample))) for sample in page.trajectories
        ]
        if not page.has_older or len(rollouts) >= MAX_SAVED:
            return rollouts[:MAX_SAVED][::-1]
        query = replace(query, before=page.trajectories[-1].ordinal)


async def find_sample(samples: RunSamples, ordinal: int) -> SampledTrajectory | None:
    """Returns the trajectory with that ordinal; None when it is not stored (any more). Raises: AstraFlowError."""
    page = await samples.source.trajectories(TrajectoryQuery(before=ordinal + 1, limit=1, with_tokens=True))
    latest = page.trajectories
    return latest[0] if latest and latest[0].ordinal == ordinal else None


async def neighbours(samples: RunSamples, filters: SampleFilter, ordinal: int) -> tuple[int | None, int | None]:
    """Returns the ordinals of the next older and next newer trajectory of the filter. Raises: AstraFlowError."""
    older = await samples.source.trajectories(replace(filters, before=ordinal, after=None).query(limit=1))
    newer = await samples.source.trajectories(replace(filters, before=None, after=ordinal).query(limit=1))
    return (
        older.trajectories[0].ordinal if older.trajectories else None,
        newer.trajectories[-1].ordinal if newer.trajectories else None,
    )


async def _page_of_whole_groups(samples: RunSamples, filters: SampleFilter) -> TrajectoryPage:
    """Returns a page extended by the rest of its last group, so that no group is split between pages."""
    query = filters.query(limit=SAMPLES_PER_PAGE)
    page = await samples.source.trajectories(query)
    members = page.trajectories
    if filters.after is not None and page.has_newer:
        rest_query = replace(query, group=members[0].group, policy=members[0].policy, after=members[0].ordinal)
        rest = await samples.source.trajectories(rest_query)
        members = _newest_first((*rest.trajectories, *members))
        return replace(
            page, trajectories=members, has_newer=await _has_any(samples, replace(filters, after=members[0].ordinal))
        )
    if filters.after is None and page.has_older:
        rest_query = replace(query, group=members[-1].group, policy=members[-1].policy, before=members[-1].ordinal)
        rest = await samples.source.trajectories(rest_query)
        members = _newest_first((*members, *rest.trajectories))
        older_filter = replace(filters, before=members[-1].ordinal)
        return replace(page, trajectories=members, has_older=await _has_any(samples, older_filter))
    return page


async def _has_any(samples: RunSamples, filters: SampleFilter) -> bool:
    return bool((await samples.source.trajectories(filters.query(limit=1))).trajectories)


def _newest_first(samples: tuple[SampledTrajectory, ...]) -> tuple[SampledTrajectory, ...]:
    return tuple(sorted(samples, key=lambda sample: -sample.ordinal))


async def samples_of_run(shown: ShownRun) -> RunSamples:
    """Returns the source of a run. Raises: HTTPException for an unknown run, Unavailable without a readable source."""
    record = await shown.record()
    run = shown.run
    if shown.is_live:
        report = run.state.report
        names = {str(node.id): node.facts.name for node in report.nodes} if report else {}
        return RunSamples(
            source=run.control, node_names=names, record_note="", plugin_kinds=report.plugin_kinds if report else ()
        )
    folder = await asyncio.to_thread(_run_folder, record.folder, record.name)
    last_report = f"{datetime.fromtimestamp(record.last_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    is_over = not folder.is_active
    state = f"the run ended at {last_report}" if is_over else f"the run is not connected, last report at {last_report}"
    return RunSamples(
        source=OfflineRun(folder.path),
        node_names=_node_names(record),
        record_note=f"Recorded; {state}.",
        plugin_kinds=report_from_json(record.report_json).plugin_kinds,
    )


def _run_folder(location: str, name: str) -> RunFolder:
    """Returns the run directory of a run. Raises: Unavailable."""
    if not location:
        raise Unavailable(
            f"cannot read the samples of {name!r}: the run is not connected and its run directory is unknown; open the "
            "directory with `astraflow view RUN_DIR` on its machine",
            code="samples.run_dir_unknown",
        )
    folder = RunFolder(Path(location))
    try:
        found_run = folder.facts.run
    except InvalidInput as problem:
        raise Unavailable(
            f"cannot read the samples of {name!r}: the run is not connected and its run directory is "
            f"unreadable: {problem}",
            code="samples.run_dir_unreadable",
        ) from problem
    if found_run != name:
        raise Unavailable(
            f"cannot read the samples of {name!r}: the run is not connected and {location!r} belongs to the run "
            f"{found_run!r}",
            code="samples.run_dir_reused",
        )
    if not OfflineRun(folder.path).exists:
        raise Unavailable(
            f"cannot read the samples of {name!r}: the run is not connected and its run directory {location!r} has no "
            "dataflow/history.sqlite",
            code="samples.no_history",
        )
    return folder


def _node_names(record: RunRecord) -> dict[str, str]:
    """Returns the names of the nodes in the last report by id; empty when the report cannot be read."""
    try:
        nodes = json.loads(record.report_json)["nodes"]
        return {str(node["id"]): str(node["facts"]["name"]) for node in nodes}
    except (KeyError, TypeError, ValueError):
        return {}  # recorded by another release: nodes are shown by id
