"""`/runs/N/trajectories`: how rewards are spread, the groups behind a bar, a group, and one conversation."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Unavailable
from astraflow.contract.reports import SampledTrajectory
from web.door.roles import Need, needs
from web.parts import PartsOf
from web.present.conversations import conversation
from web.present.sample_filter import ENDINGS, filter_from
from web.present.samples import grouped
from web.present.shell import shell
from web.present.spread import bin_rows, histogram
from web.reading.exports import Ending, Sheet, sheet_answer
from web.reading.kept_runs import Told, told_of
from web.reading.run_pages import RunNumber, run_head, showing
from web.reading.sampled import SamplePage, members_of, neighbours, one_sample, reward_spread, sample_page

router = APIRouter()

Ordinal = Annotated[int, Path(ge=0, le=2**53)]


@router.get("/runs/{run_id}/trajectories")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, run_id: RunNumber) -> Response:
    """The spread of rewards, and what the filter leaves, by groups."""
    parts = showing(parts, run_id)
    head = await run_head(parts, run_id)
    asked = filter_from(request.query_params, policies=head.policies)
    try:
        found = await sample_page(await told_of(parts, run_id), asked)
    except Unavailable as problem:
        found = SamplePage(asked=asked, problem=str(problem))
    path = f"/runs/{run_id}/trajectories"
    return parts.pages.page(
        request,
        "trajectories/page.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        head=head,
        samples=found,
        spread=histogram(found.spread, asked, path=path) if found.spread else None,
        endings=ENDINGS,
    )


@router.get("/runs/{run_id}/rewards.{ending}")
@needs(Need.READ)
async def take(request: Request, parts: PartsOf, run_id: RunNumber, ending: Ending) -> Response:
    """The spread as a file: what the page with the same filter shows."""
    parts = showing(parts, run_id)
    head, told = await run_head(parts, run_id), await told_of(parts, run_id)
    asked = filter_from(request.query_params, policies=head.policies)
    rows = bin_rows(await reward_spread(told, asked))
    columns = ("from", "to_before", "trajectories", "groups")
    return sheet_answer(Sheet(name=f"rewards-{run_id}", columns=columns, rows=rows), ending)


@router.get("/runs/{run_id}/groups/{group:path}")
@needs(Need.READ)
async def show_group(request: Request, parts: PartsOf, run_id: RunNumber, group: str, policy: str = "") -> Response:
    """The members of one group beside each other."""
    parts = showing(parts, run_id)
    head, told = await run_head(parts, run_id), await told_of(parts, run_id)
    found = await members_of(told, group, policy)
    if not found:
        raise HTTPException(404, f"Nothing of a group {group[:120]} is kept (any more): the latest samples are.")
    return parts.pages.page(
        request,
        "trajectories/group.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        head=head,
        groups=grouped(found, told.names),
        group=group,
        policy=policy,
        standing=told.standing,
    )


@router.get("/runs/{run_id}/trajectories/{ordinal}")
@needs(Need.READ)
async def show_one(request: Request, parts: PartsOf, run_id: RunNumber, ordinal: Ordinal) -> Response:
    """One conversation."""
    parts = showing(parts, run_id)
    head, told = await run_head(parts, run_id), await told_of(parts, run_id)
    asked = filter_from(request.query_params, policies=head.policies)
    sample = await one_sample(told, ordinal)
    if sample is None:
        raise HTTPException(404, f"Trajectory {ordinal} is not kept (any more): the latest samples are.")
    older, newer = await neighbours(told, asked, ordinal)
    return parts.pages.page(
        request,
        "trajectories/conversation.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        head=head,
        asked=asked,
        view=conversation(sample, told.names),
        siblings=await _siblings(told, sample),
        older=older,
        newer=newer,
        standing=told.standing,
    )


async def _siblings(told: Told, sample: SampledTrajectory) -> tuple[tuple[int, str, bool], ...]:
    """Ordinals of the group's members, what each scored, and which is shown."""
    group = grouped(await members_of(told, sample.group, sample.policy), told.names)
    members = group[0].members if group else ()
    return tuple((member.ordinal, member.reward, member.ordinal == sample.ordinal) for member in members)
