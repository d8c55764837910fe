"""`/api/v1/decisions`: who changed what, why, and from which figures."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException

from web.door.roles import Need, needs
from web.parts import PartsOf
from web.reading.decisions import CURSOR, ID, Asked, advice_at, decision, decision_page
from web.routes.api.decision_terms import DecisionDetail, DecisionList, advice_answer, decision_answer
from web.routes.api.terms import PREFIX, refusals

router = APIRouter(prefix=PREFIX, tags=["decisions"])

Word = Annotated[str, Query(max_length=128)]


@router.get("/decisions", response_model=DecisionList, responses=refusals())
@needs(Need.READ)
async def decisions(
    parts: PartsOf,
    pool: Word = "",
    kind: Word = "",
    actor: Word = "",
    text: Annotated[str, Query(max_length=200, description="Part of what was decided or why.")] = "",
    source: Annotated[Literal["", "fleet", "rule"], Query(description="One of the two journals.")] = "",
    before: Annotated[str | None, Query(pattern=CURSOR, description="`older` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> dict[str, Any]:
    """Decisions, newest first: changes of pools, holds, refusals, failed launches, and targets that the rule moved."""
    asked = Asked(pool=pool, kind=kind, actor=actor, source=source, text=text)
    page = await decision_page(parts, asked, before=before or "", limit=limit)
    return {
        "items": [decision_answer(entry) for entry in page.entries],
        "older": page.older or None,
        "problems": list(page.problems),
    }


@router.get("/decisions/{decision_id}", response_model=DecisionDetail, responses=refusals(404))
@needs(Need.READ)
async def one(parts: PartsOf, decision_id: Annotated[str, Path(pattern=ID, examples=["fleet-12"])]) -> dict[str, Any]:
    """One decision, with the rule's figures at that moment."""
    entry = await decision(parts, decision_id)
    if entry is None:
        raise HTTPException(404, f"no decision {decision_id} is in its journal")
    return decision_answer(entry) | {"advice": advice_answer(await advice_at(parts, entry))}
