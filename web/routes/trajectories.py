"""`/runs/N/trajectories`: the reward histogram, the groups behind a bar, one group, and one conversation."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Unavailable
from astraflow.contract.reports import SampledTrajectory
from web.page_queries.downloads import FileFormat, Sheet, sheet_response
from web.page_queries.run_lookup import RunNumber, load_run_header, showing
from web.page_queries.sample_sources import RunSamples, samples_of_run
from web.page_queries.samples import SamplePage, find_sample, members_of_group, neighbours, reward_spread, sample_page
from web.request_context import RequestContextDep
from web.security.roles import Permission, needs
from web.views.conversations import conversation
from web.views.layout import layout
from web.views.reward_histogram import bin_rows, histogram
from web.views.sample_filter import ENDINGS, filter_from
from web.views.samples import group_samples

router = APIRouter()

Ordinal = Annotated[int, Path(ge=0, le=2**53)]


@router.get("/runs/{run_id}/trajectories")
@needs(Permission.READ)
async def show(request: Request, context: RequestContextDep, run_id: RunNumber) -> Response:
    """Shows the reward histogram and the samples that match the filter, by group."""
    context = showing(context, run_id)
    head = await load_run_header(context, run_id)
    sample_filter = filter_from(request.query_params, policies=head.policies)
    try:
        samples = await sample_page(await samples_of_run(context, run_id), sample_filter)
    except Unavailable as problem:
        samples = SamplePage(filters=sample_filter, problem=str(problem), problem_code=problem.code)
    path = f"/runs/{run_id}/trajectories"
    return context.pages.page(
        request,
        "trajectories/page.html",
        page="runs",
        layout=layout(context.state, context.settings),
        head=head,
        samples=samples,
        spread=histogram(samples.spread, sample_filter, path=path) if samples.spread else None,
        endings=ENDINGS,
    )


@router.get("/runs/{run_id}/rewards.{ending}")
@needs(Permission.READ)
async def export(request: Request, context: RequestContextDep, run_id: RunNumber, ending: FileFormat) -> Response:
    """Returns the histogram that the page with the same filter shows, as a file."""
    context = showing(context, run_id)
    head, samples = await load_run_header(context, run_id), await samples_of_run(context, run_id)
    sample_filter = filter_from(request.query_params, policies=head.policies)
    rows = bin_rows(await reward_spread(samples, sample_filter))
    columns = ("from", "to_before", "trajectories", "groups")
    return sheet_response(Sheet(name=f"rewards-{run_id}", columns=columns, rows=rows), ending)


@router.get("/runs/{run_id}/groups/{group:path}")
@needs(Permission.READ)
async def show_group(
    request: Request, context: RequestContextDep, run_id: RunNumber, group: str, policy: str = ""
) -> Response:
    """Shows the members of one group side by side."""
    context = showing(context, run_id)
    head, samples = await load_run_header(context, run_id), await samples_of_run(context, run_id)
    members = await members_of_group(samples, group, policy)
    if not members:
        raise HTTPException(404, f"No samples of group {group[:120]}. Only the latest samples are stored.")
    return context.pages.page(
        request,
        "trajectories/group.html",
        page="runs",
        layout=layout(context.state, context.settings),
        head=head,
        groups=group_samples(members, samples.node_names),
        group=group,
        policy=policy,
        record_note=samples.record_note,
    )


@router.get("/runs/{run_id}/trajectories/{ordinal}")
@needs(Permission.READ)
async def show_item(request: Request, context: RequestContextDep, run_id: RunNumber, ordinal: Ordinal) -> Response:
    """Shows one conversation."""
    context = showing(context, run_id)
    head, samples = await load_run_header(context, run_id), await samples_of_run(context, run_id)
    sample_filter = filter_from(request.query_params, policies=head.policies)
    sample = await find_sample(samples, ordinal)
    if sample is None:
        raise HTTPException(404, f"No trajectory {ordinal}. Only the latest samples are stored.")
    older, newer = await neighbours(samples, sample_filter, ordinal)
    return context.pages.page(
        request,
        "trajectories/conversation.html",
        page="runs",
        layout=layout(context.state, context.settings),
        head=head,
        filters=sample_filter,
        view=conversation(sample, samples.node_names),
        siblings=await _siblings(samples, sample),
        older=older,
        newer=newer,
        record_note=samples.record_note,
    )


async def _siblings(samples: RunSamples, sample: SampledTrajectory) -> tuple[tuple[int, str, bool], ...]:
    """Returns each group member's ordinal, reward, and whether it is the shown one."""
    group = group_samples(await members_of_group(samples, sample.group, sample.policy), samples.node_names)
    members = group[0].members if group else ()
    return tuple((member.ordinal, member.reward, member.ordinal == sample.ordinal) for member in members)
