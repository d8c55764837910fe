"""`/api/v1/maintainer`: status, proposals and transcript of the maintainer, and decisions about them."""

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet.maintainer import Maintainer, MaintainerMode, Proposal, TranscriptEntry, TranscriptPage
from astraflow.contract.fleet.plans import PlanId
from web.database.tables import MAX_ID
from web.decisions.queries import DecisionEntry, entry_of
from web.decisions.schemas import DecisionResponse
from web.live.followed_fleet import FollowedFleet, MaintainerCache, MaintainerSnapshot
from web.maintainer import commands as maintainer_commands
from web.maintainer.transcript import transcript_view
from web.requests.dependencies import CommandsDep, FleetDep, MaintainerDep
from web.rest.common import NAME, PREFIX, ApiRouter, ItemList, Key, Reason, ReasonRequest, RequestBody, ResponseModel
from web.rest.contract_models import fields_of
from web.rest.fleet_schemas import AppliedPlanResponse, PlanResponse, applied_plan_response, plan_response
from web.security.roles import Permission, ResourceKind, needs


@fields_of(Maintainer)
class MaintainerResponse(ResponseModel):
    """Maintainer: the mode that people set, and its reported status."""


@fields_of(Proposal)
class ProposalResponse(ResponseModel):
    """Plan that waits or waited for approval."""

    plan: PlanResponse
    proposed_by: str = Field(description="Name of the actor.")


class ProposalList(ItemList[ProposalResponse]):
    """Latest proposals, waiting ones first."""


class TranscriptResponse(ResponseModel):
    """Part of a transcript, newest first."""

    chain: str = Field(
        description="Hash of the transcript's first entry, which identifies it. Send it to continue in this transcript."
    )
    is_whole: bool = Field(description="Whether the hashes of all entries are intact.")
    items: list[TranscriptEntry] = Field(description="Entries of the transcript.")
    older: int | None = Field(description="`before` of the next page; null on the last.")


class MaintainerModeRequest(RequestBody):
    """New mode of the maintainer."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "shadow", "reason": "a look first"}]})

    mode: MaintainerMode = Field(
        strict=False,
        description="`shadow`: plans are recorded; `propose`: plans need approval; `auto`: allowed plans are applied.",
    )
    reason: Reason


def proposal_response(proposal: Proposal) -> dict[str, Any]:
    """Converts to the API schema."""
    return ProposalResponse.values_of(
        proposal, plan=plan_response(proposal.plan), proposed_by=proposal.proposed_by.name
    )


def transcript_response(page: TranscriptPage, *, wake: str) -> dict[str, Any]:
    """Converts to the API schema. wake: the page contains only this wake."""
    view = transcript_view(page, wake=wake)
    return {"chain": page.chain, "is_whole": view.chain_tone != "bad", "items": page.entries, "older": view.older}


router = ApiRouter("/maintainer", tags=["maintainer"])

PlanName = Annotated[
    str, Path(pattern=NAME, description="Id of the proposed plan.", examples=["01KAN8Q0000000000000000000"])
]


@router.get("", response_model=MaintainerResponse)
@needs(Permission.READ)
async def maintainer(fleet: FleetDep, maintainer: MaintainerDep) -> Maintainer:
    """Returns the mode that people set, and the reported status: model, state, budgets, counters, problems."""
    snapshot = await _snapshot(fleet, maintainer)
    assert snapshot.maintainer is not None  # noqa: S101 (`_snapshot` raises without one)
    return snapshot.maintainer


@router.put("/mode", response_model=DecisionResponse)
@needs(Permission.APPROVE, on=ResourceKind.RUN)
async def set_mode(commands: CommandsDep, body: MaintainerModeRequest, key: Key) -> DecisionEntry:
    """Sets the maintainer's mode, which it applies within a second; `off` also ends a running wake."""
    return entry_of(await maintainer_commands.set_mode(commands, body.mode, key=key, reason=body.reason))


@router.post("/wake", response_model=DecisionResponse)
@needs(Permission.APPROVE, on=ResourceKind.RUN)
async def wake(commands: CommandsDep, body: ReasonRequest, key: Key) -> DecisionEntry:
    """Lets the maintainer wake once, without a signal and within its budgets. Returns 409 if none can wake."""
    return entry_of(await maintainer_commands.wake(commands, key=key, reason=body.reason))


@router.get("/proposals", response_model=ProposalList)
@needs(Permission.READ)
async def proposals(fleet: FleetDep, maintainer: MaintainerDep) -> dict[str, Any]:
    """Lists waiting proposals, then the latest decided ones; at most twenty of each."""
    return {"items": [proposal_response(item) for item in (await _snapshot(fleet, maintainer)).proposals]}


@router.get("/proposals/{plan}", response_model=ProposalResponse)
@needs(Permission.READ)
async def proposal(fleet: FleetDep, maintainer: MaintainerDep, plan: PlanName) -> dict[str, Any]:
    """Returns a proposal with its plan."""
    item = (await _snapshot(fleet, maintainer)).proposal(PlanId.unchecked(plan))
    if item is None:
        raise HTTPException(
            404, f"cannot find proposal {plan!r}: only the latest are stored; see GET {PREFIX}/maintainer/proposals"
        )
    return proposal_response(item)


@router.post("/proposals/{plan}/approve", response_model=AppliedPlanResponse)
@needs(Permission.APPROVE, on=ResourceKind.PLAN)
async def approve(
    commands: CommandsDep, fleet: FleetDep, maintainer: MaintainerDep, plan: PlanName, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Approves a proposal and applies its plan. Instances start and end after the response.

    Returns 409 if the proposal is not waiting, or the pool has changed since.
    """
    await _snapshot(fleet, maintainer)
    return applied_plan_response(await maintainer_commands.approve(commands, PlanId(plan), key=key, reason=body.reason))


@router.post("/proposals/{plan}/reject", response_model=DecisionResponse)
@needs(Permission.APPROVE, on=ResourceKind.PLAN)
async def reject(
    commands: CommandsDep, fleet: FleetDep, maintainer: MaintainerDep, plan: PlanName, body: ReasonRequest, key: Key
) -> DecisionEntry:
    """Rejects a proposal, which can then not be applied. Returns 409 if it is not waiting."""
    await _snapshot(fleet, maintainer)
    return entry_of(await maintainer_commands.reject(commands, PlanId(plan), key=key, reason=body.reason))


@router.get("/transcript", response_model=TranscriptResponse)
@needs(Permission.READ)
async def transcript(
    fleet: FleetDep,
    chain: Annotated[
        str,
        Query(pattern=r"^[0-9a-f]{0,64}$", description="Hash that identifies the transcript; empty for the latest."),
    ] = "",
    wake: Annotated[str, Query(max_length=128, description="Only this wake.")] = "",
    before: Annotated[int | None, Query(ge=0, le=MAX_ID, description="`older` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """Lists transcript entries (input, instructions, tool calls, results), newest first, linked by hashes."""
    page = await fleet.require_client().transcript(chain=chain, wake=wake, before=before, limit=limit)
    return transcript_response(page, wake=wake)


async def _snapshot(fleet: FollowedFleet, maintainer: MaintainerCache) -> MaintainerSnapshot:
    """Returns the newest snapshot. Raises: Unavailable without one."""
    fleet.require_client()
    snapshot = await maintainer.snapshot()
    if snapshot.maintainer is None:
        raise Unavailable(
            snapshot.problem or "cannot show the maintainer: the fleet service has not answered yet; try again",
            code="maintainer.no_status",
        )
    return snapshot
