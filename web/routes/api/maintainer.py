"""`/api/v1/maintainer`: how the maintainer is, what it proposes, what it wrote down; and deciding about it."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.fleet import PlanId
from astraflow.contract.maintenance import MaintainerMode
from web.acts import fleet as fleet_acts
from web.acts import maintainer as maintainer_acts
from web.door.roles import Need, On, needs
from web.feed.maintainer_watch import MaintainerLook
from web.parts import Parts, PartsOf, ViewerOf
from web.routes.api.decision_terms import DecisionAnswer, fleet_decision_answer
from web.routes.api.fleet_bodies import ReasonOnly
from web.routes.api.fleet_terms import AppliedAnswer, applied_answer
from web.routes.api.maintainer_terms import (
    MaintainerAnswer,
    ModeAsked,
    ProposalAnswer,
    ProposalList,
    TranscriptAnswer,
    maintainer_answer,
    proposal_answer,
    transcript_answer,
)
from web.routes.api.terms import LARGEST, NAME, PREFIX, SENT, Key, refusals

router = APIRouter(prefix=f"{PREFIX}/maintainer", tags=["maintainer"])

PlanName = Annotated[
    str, Path(pattern=NAME, description="Id of the proposed plan.", examples=["01KAN8Q0000000000000000000"])
]


@router.get("", response_model=MaintainerAnswer, responses=refusals())
@needs(Need.READ)
async def maintainer(parts: PartsOf) -> dict[str, Any]:
    """Its mode, as people set it; and how it says it is: model, state, budgets, counters, troubles."""
    look = await _look(parts)
    assert look.maintainer is not None  # noqa: S101 (a look without one raises)
    return maintainer_answer(look.maintainer)


@router.put("/mode", response_model=DecisionAnswer, responses=refusals(*SENT))
@needs(Need.APPROVE, on=On.RUN)
async def set_mode(parts: PartsOf, viewer: ViewerOf, body: ModeAsked, key: Key) -> dict[str, Any]:
    """Say how far it may go. It hears of it within a second; a wake that is under way ends when the mode is `off`."""
    mode = MaintainerMode(body.mode)
    return fleet_decision_answer(await maintainer_acts.set_mode(parts, viewer, mode, key=key, reason=body.reason))


@router.get("/proposals", response_model=ProposalList, responses=refusals())
@needs(Need.READ)
async def proposals(parts: PartsOf) -> dict[str, Any]:
    """Plans that wait for a person, then the latest that were decided; twenty of each at most."""
    return {"items": [proposal_answer(one) for one in (await _look(parts)).proposals]}


@router.get("/proposals/{plan}", response_model=ProposalAnswer, responses=refusals(404))
@needs(Need.READ)
async def proposal(parts: PartsOf, plan: PlanName) -> dict[str, Any]:
    """One of them, with what it would do."""
    found = (await _look(parts)).proposal(PlanId.known(plan))
    if found is None:
        raise HTTPException(404, f"no proposal {plan} is among the latest")
    return proposal_answer(found)


@router.post("/proposals/{plan}/approve", response_model=AppliedAnswer, responses=refusals(*SENT))
@needs(Need.APPROVE, on=On.PLAN)
async def approve(parts: PartsOf, viewer: ViewerOf, plan: PlanName, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Have it done. Machines start and end after the answer.

    409 when it does not wait (any more), or the pool has changed since.
    """
    await _look(parts)
    return applied_answer(await maintainer_acts.approve(parts, viewer, PlanId(plan), key=key, reason=body.reason))


@router.post("/proposals/{plan}/reject", response_model=DecisionAnswer, responses=refusals(*SENT))
@needs(Need.APPROVE, on=On.PLAN)
async def reject(parts: PartsOf, viewer: ViewerOf, plan: PlanName, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Say no: it can be applied no more. 409 when it does not wait (any more)."""
    await _look(parts)
    try:
        done = await maintainer_acts.reject(parts, viewer, PlanId(plan), key=key, reason=body.reason)
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem
    return fleet_decision_answer(done)


@router.get("/transcript", response_model=TranscriptAnswer, responses=refusals())
@needs(Need.READ)
async def transcript(
    parts: PartsOf,
    chain: Annotated[
        str, Query(pattern=r"^[0-9a-f]{0,64}$", description="Which transcript; the latest if empty.")
    ] = "",
    wake: Annotated[str, Query(max_length=128, description="Only this wake.")] = "",
    before: Annotated[int | None, Query(ge=0, le=LARGEST, description="`older` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """What it saw, was told, asked and did, newest first; each entry with the hash of the one before."""
    page = await fleet_acts.fleet_of(parts).transcript(chain=chain, wake=wake, before=before, limit=limit)
    return transcript_answer(page, wake=wake)


async def _look(parts: Parts) -> MaintainerLook:
    """The newest one. Raises: Unavailable without any."""
    fleet_acts.fleet_of(parts)
    look = await parts.maintainer.look()
    if look.maintainer is None:
        raise Unavailable(look.problem or "the fleet service has not answered yet")
    return look
