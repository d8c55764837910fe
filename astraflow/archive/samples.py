"""Queries on sampled trajectories in the archive."""

import math
import sqlite3
from dataclasses import replace
from typing import Any

from astraflow.archive.connection import Conditions, decoded_rows, like_pattern
from astraflow.contract.ids import FlowId, GroupId, PolicyId
from astraflow.contract.reports.queries import (
    MAX_NAMES,
    GroupPage,
    GroupQuery,
    RewardBin,
    RewardHistogram,
    RewardQuery,
    SampledGroup,
    SampledPrompt,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.wire.codecs.agent_calls import block_size_bytes
from astraflow.wire.codecs.converter import from_message
from astraflow.wire.pb import control_plane_pb2 as pb

PAGE_BYTES = 16 * 2**20
"""Size limit of the texts and calls of one page."""

_COLUMNS = "ordinal, step, outcome, size_bytes, body, prompt_text, completion_text, batched_at, trained_at"

_TERM = "(select value from json_each(samples.reward_terms) where key = ?)"
"""Value of a reward term; null for a trajectory without it."""

MAX_SHOWN_REWARD = 1e9
"""Largest reward shown. Larger rewards, which were stored before rewards had a limit, are shown as this value."""

_SHOWN = f"max(-{MAX_SHOWN_REWARD!r}, min({MAX_SHOWN_REWARD!r}, reward))"

_SMALLEST_SPREAD = 1e-9
"""Relative difference below which rewards are shown as one value: narrower bins would have equal labels."""

_GROUP_COLUMNS = (
    "group_id, policy, flow, max(ordinal), max(at), max(step), max(outcome), count(reward), count(failure), "
    f"sum(is_truncated), avg({_SHOWN}), min({_SHOWN}), max({_SHOWN})"
)


def find_trajectories(database: sqlite3.Connection, query: TrajectoryQuery) -> TrajectoryPage:
    """Returns one page, newest first: back from `before` or the end, or forward from `after`."""
    matching = _matching(query)
    trajectories, has_more = _page_rows(database, matching, query)
    if query.after is not None:
        has_older = _exists(database, matching, "ordinal <= ?", query.after)
        return TrajectoryPage(trajectories=tuple(reversed(trajectories)), has_older=has_older, has_newer=has_more)
    has_newer = query.before is not None and _exists(database, matching, "ordinal >= ?", query.before)
    return TrajectoryPage(trajectories=tuple(trajectories), has_older=has_more, has_newer=has_newer)


def find_groups(database: sqlite3.Connection, query: GroupQuery) -> GroupPage:
    """Returns one page of groups, newest first."""
    matching = Conditions()
    _add_common(matching, query)
    if query.prompt:
        of_prompt = "(policy, group_id) in (select policy, group_id from sampled_groups where prompt = ?)"
        matching.add_all(*((of_prompt, query.prompt) if _has_group_table(database) else ("false",)))
    having = Conditions()
    having.add("max(ordinal) < ?", query.before)
    select = (
        f"select {_GROUP_COLUMNS} from samples where {matching.text} group by policy, group_id "  # noqa: S608 (values are apart)
        f"having {having.text} order by max(ordinal) desc limit ?"
    )
    rows = database.execute(select, (*matching.values, *having.values, query.limit + 1)).fetchall()
    groups = list(decoded_rows(rows[: query.limit], _group, table="samples"))
    if _has_group_table(database):
        groups = [_with_prompt(database, group) for group in groups]
    return GroupPage(groups=tuple(groups), has_older=len(rows) > query.limit)


def find_sample_index(database: sqlite3.Connection, query: SampleIndexQuery) -> SampleIndex:
    """Returns the steps nearest to the one of the query, and the prompts of several steps; nothing from the archive of
    a release that recorded no prompts."""
    if not _has_group_table(database):
        return SampleIndex(steps=(), prompts=())
    matching = Conditions()
    matching.add("policy = ?", query.policy)
    near = "-step" if query.near is None else "abs(step - ?)"
    steps = database.execute(
        f"select distinct step from sampled_groups where {matching.text} and step is not null order by {near} limit ?",  # noqa: S608 (values are apart)
        (*matching.values, *(() if query.near is None else (query.near,)), query.limit),
    )
    prompts = database.execute(
        "select prompt, flow, count(distinct at_step) as steps, min(at_step), max(at_step) from "  # noqa: S608 (as above)
        f"(select prompt, flow, coalesce(step, version) as at_step from sampled_groups where {matching.text}) "
        "where prompt != '' and at_step is not null group by prompt, flow having steps > 1 "
        "order by steps desc, prompt limit ?",
        (*matching.values, query.limit),
    )
    return SampleIndex(
        steps=tuple(sorted(step for (step,) in steps)),
        prompts=tuple(decoded_rows(prompts, _prompt, table="sampled_groups")),
    )


def _has_group_table(database: sqlite3.Connection) -> bool:
    return bool(database.execute("select 1 from sqlite_master where name = 'sampled_groups'").fetchone())


def _with_prompt(database: sqlite3.Connection, group: SampledGroup) -> SampledGroup:
    select = "select prompt, version from sampled_groups where policy = ? and group_id = ?"
    prompt, version = database.execute(select, (group.policy, group.group)).fetchone() or ("", None)
    return replace(group, prompt=prompt, version=version)


def _prompt(row: tuple[Any, ...]) -> SampledPrompt:
    prompt, flow, steps, first, last = row
    return SampledPrompt(prompt=prompt, flow=FlowId(flow), steps=steps, first=first, last=last)


def find_rewards(database: sqlite3.Connection, query: RewardQuery) -> RewardHistogram:
    """Returns the histogram of all matches, of rewards or of a reward term, and their endings, roles and terms."""
    matching = _matching(query.matching)
    (failed,) = database.execute(
        f"select count(failure) from samples where {matching.text}",  # noqa: S608 (values are apart)
        matching.values,
    ).fetchone()
    return RewardHistogram(bins=_bins(database, matching, query), failed=failed, **_counts_by_name(database, matching))


def _bins(database: sqlite3.Connection, matching: Conditions, query: RewardQuery) -> tuple[RewardBin, ...]:
    value, values = (_TERM, [query.term]) if query.term else ("reward", [])
    rows = (
        f"(select max(-{MAX_SHOWN_REWARD!r}, min({MAX_SHOWN_REWARD!r}, {value})) as shown, "  # noqa: S608 (values are apart)
        f"policy || ' ' || group_id as share from samples where {matching.text})"
    )
    values = [*values, *matching.values]
    low, high = database.execute(f"select min(shown), max(shown) from {rows}", values).fetchone()  # noqa: S608 (as above)
    if low is None:
        return ()
    width = bin_width(low, high, at_most=query.max_bins)
    first = math.floor(low / width)
    select = (
        "select cast(shown / ? - ? as integer), min(shown), max(shown), count(*), "  # noqa: S608 (as above)
        f"count(distinct share) from {rows} where shown is not null group by 1 order by 1"
    )
    return tuple(
        RewardBin(
            begin=(first + index) * width,
            end=(first + index + 1) * width,
            lowest=lowest,
            highest=highest,
            trajectories=trajectories,
            groups=groups,
        )
        for index, lowest, highest, trajectories, groups in database.execute(select, (width, first, *values))
    )


def _counts_by_name(database: sqlite3.Connection, matching: Conditions) -> dict[str, dict[str, int]]:
    """Returns numbers of trajectories by ending, by role, by reward term and by outcome of a recorded call."""
    most_frequent = f"group by 1 order by count(*) desc, 1 limit {MAX_NAMES}"
    selects = {
        "endings": f"select ending, count(*) from samples where ending != '' and {matching.text} {most_frequent}",  # noqa: S608 (values are apart)
        "roles": f"select role, count(*) from samples where role != '' and {matching.text} {most_frequent}",  # noqa: S608 (as above)
        "terms": "select key, count(*) from (select reward_terms as terms from samples where "  # noqa: S608 (as above)
        f"reward_terms != '{{}}' and {matching.text}), json_each(terms) {most_frequent}",
        "calls": "select key, count(*) from (select call_outcomes as calls from samples where "  # noqa: S608 (as above)
        f"call_outcomes != '{{}}' and {matching.text}), json_each(calls) {most_frequent}",
    }
    return {name: dict(database.execute(select, matching.values).fetchall()) for name, select in selects.items()}


def bin_width(low: float, high: float, *, at_most: int) -> float:
    """Returns a round bin width with which at most `at_most` bins (or two, if more) cover `low` to `high`.

    >>> bin_width(0.0, 1.0, at_most=20), bin_width(-3.0, 40.0, at_most=20), bin_width(1.0, 1.0, at_most=20)
    (0.1, 2.5, 0.1)
    """
    rough = (high - low) / max(1, at_most - 2)
    if rough <= _SMALLEST_SPREAD * max(1.0, abs(low), abs(high)):
        return 0.1
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(factor * magnitude for factor in (1.0, 2.5, 5.0, 10.0) if factor * magnitude >= rough)


def _matching(query: TrajectoryQuery) -> Conditions:
    conditions = Conditions()
    _add_interaction(conditions, query)
    has_call = "exists (select 1 from json_each(samples.call_outcomes) where key = ?)"
    conditions.add(has_call, query.call.value if query.call else None)
    _add_common(conditions, query)
    conditions.add("group_id = ?", query.group)
    conditions.add("task = ?", query.task)
    conditions.add("node = ?", query.node)
    conditions.add("reward >= ?", query.min_reward)
    conditions.add("reward <= ?", query.max_reward)
    conditions.add("is_truncated = ?", query.is_truncated)
    conditions.add("(failure is not null) = ?", query.is_failed)
    conditions.add(
        "prompt_text like ? escape '|' or completion_text like ? escape '|' or failure like ? escape '|'",
        like_pattern(query.text),
    )
    return conditions


def _add_interaction(conditions: Conditions, query: TrajectoryQuery) -> None:
    conditions.add("ending = ?", query.ending.value if query.ending else None)
    conditions.add("role = ?", query.role)
    if query.term:
        conditions.add_all(f"{_TERM} is not null", query.term)
    if query.min_term is not None:
        conditions.add_all(f"{_TERM} >= ?", query.term, query.min_term)
    if query.max_term is not None:
        conditions.add_all(f"{_TERM} <= ?", query.term, query.max_term)


def _add_common(conditions: Conditions, query: TrajectoryQuery | GroupQuery) -> None:
    conditions.add("policy = ?", query.policy)
    conditions.add("flow = ?", query.flow)
    conditions.add("outcome = ?", query.outcome)
    conditions.add("step = ?", query.step)
    conditions.add("step >= ?", query.first_step)
    conditions.add("step <= ?", query.last_step)


def _page_rows(
    database: sqlite3.Connection, matching: Conditions, query: TrajectoryQuery
) -> tuple[list[SampledTrajectory], bool]:
    """Returns the rows of the page in query order, and whether more follow."""
    is_forward = query.after is not None
    bound, order = ("ordinal > ?", "asc") if is_forward else ("ordinal < ?", "desc")
    boundary = query.after if is_forward else query.before
    values = list(matching.values) + ([] if boundary is None else [boundary])
    where = matching.text if boundary is None else f"{matching.text} and {bound}"
    tokens = "tokens_body" if query.with_tokens else "x''"
    calls = "calls_body" if query.with_calls else "x''"
    select = f"select {_COLUMNS}, {tokens}, {calls} from samples where {where} order by ordinal {order} limit ?"  # noqa: S608 (values are apart)
    trajectories: list[SampledTrajectory] = []
    total_bytes = 0
    rows = database.execute(select, (*values, -1))
    for size_bytes, trajectory in decoded_rows(rows, _sized_sample, table="samples"):
        total_bytes += size_bytes
        if trajectories and (len(trajectories) == query.limit or total_bytes > PAGE_BYTES):
            return trajectories, True
        trajectories.append(trajectory)
    return trajectories, False


def _exists(database: sqlite3.Connection, matching: Conditions, bound: str, boundary: int) -> bool:
    select = f"select exists (select 1 from samples where {matching.text} and {bound})"  # noqa: S608 (values are apart)
    return bool(database.execute(select, (*matching.values, boundary)).fetchone()[0])


def _sized_sample(row: tuple[Any, ...]) -> tuple[int, SampledTrajectory]:
    """Returns a trajectory with the size of its texts and calls in bytes."""
    return int(row[3]) + (block_size_bytes(row[-1]) if row[-1] else 0), _sample(row)


def _sample(row: tuple[Any, ...]) -> SampledTrajectory:
    _, step, outcome, _, body, prompt_text, completion_text, batched_at, trained_at, tokens_body, calls_body = row
    message = pb.SampledTrajectory.FromString(body)
    message.MergeFromString(tokens_body)
    message.calls = calls_body
    sample = from_message(message, SampledTrajectory)
    return replace(
        sample,
        step=step,
        outcome=outcome,
        prompt_text=prompt_text,
        completion_text=completion_text,
        batched_at=batched_at,
        trained_at=trained_at,
    )


def _group(row: tuple[Any, ...]) -> SampledGroup:
    group, policy, flow, ordinal, at, step, outcome, trajectories, failed, truncated, *rewards = row
    return SampledGroup(
        group=GroupId(group),
        policy=PolicyId(policy),
        flow=FlowId(flow),
        ordinal=ordinal,
        at=at,
        step=step,
        outcome=outcome,
        trajectories=trajectories,
        failed=failed,
        truncated=truncated,
        reward_mean=rewards[0],
        reward_min=rewards[1],
        reward_max=rewards[2],
    )
