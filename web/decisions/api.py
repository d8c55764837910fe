"""`/api/v1/decisions`: the journal of decisions with reasons and input figures."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from starlette.exceptions import HTTPException

from web.decisions.queries import (
    CURSOR_PATTERN,
    ENTRY_ID_PATTERN,
    DecisionFilter,
    decision,
    decision_page,
    recommendation_at,
)
from web.decisions.schemas import DecisionDetail, DecisionList
from web.requests.dependencies import ControlDep, FleetDep, StateDep
from web.rest.common import PREFIX, ApiRouter
from web.security.roles import Permission, needs

router = ApiRouter(tags=["decisions"])

Word = Annotated[str, Query(max_length=128)]


@router.get("/decisions", response_model=DecisionList)
@needs(Permission.READ)
async def decisions(
    control: ControlDep,
    fleet: FleetDep,
    pool: Word = "",
    kind: Word = "",
    actor: Word = "",
    text: Annotated[str, Query(max_length=200, description="Part of the decision or its reason.")] = "",
    source: Annotated[Literal["", "fleet", "rule"], Query(description="Only this journal; empty for both.")] = "",
    before: Annotated[str | None, Query(pattern=CURSOR_PATTERN, description="`older` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> dict[str, Any]:
    """Lists decisions, newest first: pool changes, holds, refusals, failed launches, and target changes."""
    filters = DecisionFilter(pool=pool, kind=kind, actor=actor, source=source, text=text)
    page = await decision_page(control, fleet, filters, before=before or "", limit=limit)
    return {"items": page.entries, "older": page.older or None, "problems": page.problems}


@router.get("/decisions/{decision_id}", response_model=DecisionDetail)
@needs(Permission.READ)
async def get_decision(
    state: StateDep,
    control: ControlDep,
    fleet: FleetDep,
    decision_id: Annotated[str, Path(pattern=ENTRY_ID_PATTERN, examples=["fleet-12"])],
) -> dict[str, Any]:
    """Returns a decision with the sizing rule's recommendation at that time."""
    entry = await decision(control, fleet, decision_id)
    if entry is None:
        raise HTTPException(
            404,
            f"cannot find decision {decision_id!r}: it is not in its journal; list them with GET {PREFIX}/decisions",
        )
    return DecisionDetail.values_of(entry, recommendation=await recommendation_at(state, control, entry))
