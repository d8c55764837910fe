"""`/runs/N/trajectories`: how rewards are spread, the groups behind a bar, a group, and one conversation."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.reports import SampledTrajectory
from web.exports import Ending, Sheet, sheet_answer
from web.parts import Parts, PartsOf
from web.present.conversations import conversation
from web.present.runs import RunHead
from web.present.sample_filter import ENDINGS, filter_from
from web.present.samples import grouped
from web.present.shell import shell
from web.present.spread import bin_rows, histogram
from web.roles import Need, needs
from web.run_pages import RunNumber, run_head, showing
from web.sampled import SamplePage, members_of, neighbours, node_names, one_sample, reward_spread, sample_page

router = APIRouter()

Ordinal = Annotated[int, Path(ge=0, le=2**53)]


@router.get("/runs/{run_id}/trajectories")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, run_id: RunNumber) -> Response:
    """The spread of rewards, and what the filter leaves, by groups."""
    parts = showing(parts, run_id)
    head = await run_head(parts, run_id)
    asked = filter_from(request.query_params, policies=head.policies)
    found = await sample_page(parts, asked) if head.is_live else SamplePage(asked=asked)
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
    head = await _live_head(parts, run_id)
    asked = filter_from(request.query_params, policies=head.policies)
    rows = bin_rows(await reward_spread(parts, asked))
    columns = ("from", "to_before", "trajectories", "groups")
    return sheet_answer(Sheet(name=f"rewards-{run_id}", columns=columns, rows=rows), ending)


@router.get("/runs/{run_id}/groups/{group:path}")
@needs(Need.READ)
async def show_group(request: Request, parts: PartsOf, run_id: RunNumber, group: str, policy: str = "") -> Response:
    """The members of one group beside each other."""
    parts = showing(parts, run_id)
    head = await _live_head(parts, run_id)
    found = await members_of(parts, group, policy)
    if not found:
        raise HTTPException(404, f"Nothing of a group {group[:120]} is kept (any more): the latest samples are.")
    return parts.pages.page(
        request,
        "trajectories/group.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        head=head,
        groups=grouped(found, node_names(parts)),
        group=group,
        policy=policy,
    )


@router.get("/runs/{run_id}/trajectories/{ordinal}")
@needs(Need.READ)
async def show_one(request: Request, parts: PartsOf, run_id: RunNumber, ordinal: Ordinal) -> Response:
    """One conversation."""
    parts = showing(parts, run_id)
    head = await _live_head(parts, run_id)
    asked = filter_from(request.query_params, policies=head.policies)
    sample = await one_sample(parts, ordinal)
    if sample is None:
        raise HTTPException(404, f"Trajectory {ordinal} is not kept (any more): the latest samples are.")
    older, newer = await neighbours(parts, asked, ordinal)
    return parts.pages.page(
        request,
        "trajectories/conversation.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        head=head,
        asked=asked,
        view=conversation(sample, node_names(parts)),
        siblings=await _siblings(parts, sample),
        older=older,
        newer=newer,
    )


async def _siblings(parts: Parts, sample: SampledTrajectory) -> tuple[tuple[int, str, bool], ...]:
    """Ordinals of the group's members, what each scored, and which is shown."""
    group = grouped(await members_of(parts, sample.group, sample.policy), node_names(parts))
    members = group[0].members if group else ()
    return tuple((member.ordinal, member.reward, member.ordinal == sample.ordinal) for member in members)


async def _live_head(parts: Parts, run_id: int) -> RunHead:
    """Raises: HTTPException while the run is not connected: what it sampled is with it."""
    head = await run_head(parts, run_id)
    if not head.is_live:
        raise HTTPException(
            503, f"Trajectories are kept by the run's dataflow, and {head.name} is not connected: resume it first."
        )
    return head
