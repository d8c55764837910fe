"""`/runs/N/trajectories`: the reward histogram, the groups behind a bar, one group, and one conversation."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Unavailable
from astraflow.contract.reports.report import SampledTrajectory
from web.components.downloads import FileFormat, Sheet, sheet_response
from web.database.db import Database
from web.database.tables import TrajectoryLabel
from web.requests.dependencies import DatabaseDep, RecorderDep, ShownRunDep
from web.security.roles import Permission, needs
from web.trajectories.agent_calls import OUTCOME_LABELS, call_bodies, call_list, session_calls
from web.trajectories.conversations import conversation
from web.trajectories.data_sets import DataSetKind
from web.trajectories.episodes import episode_tree
from web.trajectories.filters import ending_options, filter_from, outcome_named
from web.trajectories.hops import hop_rows
from web.trajectories.labels import LABEL_KEYS, labels_of_run
from web.trajectories.prompts import prompt_history
from web.trajectories.queries import (
    RunSamples,
    SamplePage,
    find_sample,
    members_of_episode,
    members_of_group,
    neighbours,
    reward_spread,
    sample_page,
    samples_of_run,
)
from web.trajectories.reward_histogram import bin_rows, ending_counts, histogram
from web.trajectories.turns import LEGEND
from web.trajectories.views import group_samples

router = APIRouter()

MAX_DIGITS = 16
"""Longest number of a step in an address. Digits."""

Ordinal = Annotated[int, Path(ge=0, le=2**53)]


@router.get("/trajectories")
@needs(Permission.READ)
async def show_live(request: Request, recorder: RecorderDep) -> Response:
    """Redirects to the trajectories of the live run, with the same filter: problems in reports link here."""
    if recorder.run_id is None:
        raise Unavailable(
            "cannot show trajectories: no run is recorded yet; try again in a few seconds", code="report.none_yet"
        )
    return RedirectResponse(f"/runs/{recorder.run_id}/trajectories?{request.query_params}", 303)


@router.get("/runs/{run_id}/trajectories")
@needs(Permission.READ)
async def show(request: Request, shown: ShownRunDep, database: DatabaseDep) -> Response:
    """Shows the reward histogram and the samples that match the filter, by group."""
    head = await shown.header()
    sample_filter = filter_from(request.query_params, policies=head.policies)
    try:
        samples = await sample_page(await samples_of_run(shown), sample_filter)
    except Unavailable as problem:
        samples = SamplePage(filters=sample_filter, problem=str(problem), problem_code=problem.code)
    sample_filter = samples.filters
    path = f"/runs/{shown.id}/trajectories"
    return shown.run.pages.page(
        request,
        "trajectories/page.html",
        page="runs",
        head=head,
        samples=samples,
        spread=histogram(samples.spread, sample_filter, path=path) if samples.spread else None,
        term_spread=histogram(samples.term_spread, sample_filter, path=path, of_term=True)
        if samples.term_spread
        else None,
        endings=ending_options(
            with_interactions=sample_filter.ending.of_interaction is not None
            or bool(samples.spread and samples.spread.endings)
        ),
        ended=ending_counts(samples.spread, sample_filter, path=path) if samples.spread else (),
        call_outcomes=OUTCOME_LABELS
        if sample_filter.call is not None or (samples.spread and samples.spread.calls)
        else {},
        data_set_kinds=DataSetKind,
        labels=await _labels_by_ordinal(
            database, shown.id, [member.ordinal for group in samples.groups for member in group.members]
        ),
    )


@router.get("/runs/{run_id}/rewards.{ending}")
@needs(Permission.READ)
async def export(request: Request, shown: ShownRunDep, ending: FileFormat, of_term: bool = False) -> Response:
    """Returns the histogram that the page with the same filter shows, as a file. of_term: that of its reward term."""
    head, samples = await shown.header(), await samples_of_run(shown)
    sample_filter = filter_from(request.query_params, policies=head.policies)
    rows = bin_rows(await reward_spread(samples, sample_filter, of_term=of_term and bool(sample_filter.term)))
    columns = ("from", "to_before", "trajectories", "groups")
    return sheet_response(Sheet(name=f"rewards-{shown.id}", columns=columns, rows=rows), ending)


@router.get("/runs/{run_id}/groups/{group:path}")
@needs(Permission.READ)
async def show_group(
    request: Request, shown: ShownRunDep, database: DatabaseDep, group: str, policy: str = ""
) -> Response:
    """Shows the members of one group side by side."""
    head, samples = await shown.header(), await samples_of_run(shown)
    members = await members_of_group(samples, group, policy)
    if not members:
        raise HTTPException(404, f"No samples of group {group[:120]}. Only the latest samples are stored.")
    return shown.run.pages.page(
        request,
        "trajectories/group.html",
        page="runs",
        head=head,
        groups=group_samples(members, samples.node_names),
        group=group,
        policy=policy,
        listed=filter_from(request.query_params, policies=head.policies).address(group=""),
        record_note=samples.record_note,
        labels=await _labels_by_ordinal(database, shown.id, [member.ordinal for member in members]),
        label_keys=LABEL_KEYS,
    )


@router.get("/runs/{run_id}/prompts")
@needs(Permission.READ)
async def show_prompt(
    request: Request,
    shown: ShownRunDep,
    group: Annotated[str, Query(max_length=200)] = "",
    policy: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Shows the prompt of a group at several steps side by side; `at` in the address chooses steps."""
    head, samples = await shown.header(), await samples_of_run(shown)
    chosen = [int(at) for at in request.query_params.getlist("at") if at.isdecimal() and len(at) < MAX_DIGITS]
    history = await prompt_history(samples, group, policy, chosen)
    if history is None:
        raise HTTPException(404, f"No samples of group {group[:120]}. Samples of some groups only are stored.")
    return shown.run.pages.page(
        request,
        "trajectories/prompt.html",
        page="runs",
        head=head,
        group=group,
        policy=policy,
        history=history,
        record_note=samples.record_note,
    )


@router.get("/runs/{run_id}/trajectories/{ordinal}")
@needs(Permission.READ)
async def show_item(
    request: Request,
    shown: ShownRunDep,
    database: DatabaseDep,
    ordinal: Ordinal,
    all_texts: bool = False,
    token: Annotated[int | None, Query(ge=0, le=2**31)] = None,
    calls: str = "",
    open_call: Annotated[int | None, Query(ge=1, le=2**31)] = None,
) -> Response:
    """Shows one conversation. all_texts: without cutting long ones. token: shows the tokens of the page with it.
    calls: outcome of the listed model calls. open_call: number of a call whose request and reply are shown."""
    head, samples = await shown.header(), await samples_of_run(shown)
    sample_filter = filter_from(request.query_params, policies=head.policies)
    sample = await find_sample(samples, ordinal)
    if sample is None:
        raise HTTPException(404, f"No trajectory {ordinal}. Only the latest samples are stored.")
    older, newer = await neighbours(samples, sample_filter, ordinal)
    members = await members_of_episode(samples, sample.task)
    return shown.run.pages.page(
        request,
        "trajectories/conversation.html",
        page="runs",
        head=head,
        filters=sample_filter,
        view=conversation(
            sample, samples.node_names, kinds=samples.plugin_kinds, is_complete=all_texts, first_token=token
        ),
        levels=LEGEND,
        episode=episode_tree(members, sample.ordinal),
        calls=call_list(members, sample.ordinal, outcome=outcome_named(calls), number=open_call),
        siblings=await _siblings(samples, sample),
        hops=hop_rows(sample),
        older=older,
        newer=newer,
        record_note=samples.record_note,
        labels=await labels_of_run(database, shown.id, ordinals=[ordinal]),
        label_keys=LABEL_KEYS,
    )


@router.get("/runs/{run_id}/trajectories/{ordinal}/calls/{number}")
@needs(Permission.READ)
async def show_call(
    request: Request, shown: ShownRunDep, ordinal: Ordinal, number: Annotated[int, Path(ge=1, le=2**31)]
) -> Response:
    """Returns the request and the reply of a call of the trajectory's session as a fragment, for the list of calls."""
    samples = await samples_of_run(shown)
    sample = await find_sample(samples, ordinal)
    calls = session_calls(await members_of_episode(samples, sample.task)) if sample else ()
    if number > len(calls):
        raise HTTPException(404, f"No call {number} of trajectory {ordinal}. Only the latest samples are stored.")
    return shown.run.pages.page(request, "trajectories/_call.html", bodies=call_bodies(calls[number - 1].call))


async def _labels_by_ordinal(
    database: Database, run_id: int, ordinals: Sequence[int]
) -> Mapping[int, Sequence[TrajectoryLabel]]:
    """Returns the labels of these trajectories of a run, by ordinal."""
    by_ordinal: dict[int, list[TrajectoryLabel]] = {}
    for label in await labels_of_run(database, run_id, ordinals=ordinals):
        by_ordinal.setdefault(label.ordinal, []).append(label)
    return by_ordinal


async def _siblings(samples: RunSamples, sample: SampledTrajectory) -> tuple[tuple[int, str, bool], ...]:
    """Returns each group member's ordinal, reward, and whether it is the shown one; of an episode with several
    trajectories, that at the same position."""
    members = await members_of_group(samples, sample.group, sample.policy)
    same = [member for member in members if member.index == sample.index]
    group = group_samples(same, samples.node_names)
    shown = group[0].members if group else ()
    return tuple((member.ordinal, member.reward, member.ordinal == sample.ordinal) for member in shown)
