"""What a pool's page draws: other bounds played over the record, and how long launches took; each as a file too."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Pool, PoolSpec
from web.acts import fleet as fleet_acts
from web.acts.pool_form import bounds_from, number_from
from web.acts.what_if import Compared, compared
from web.door.guard import FORM_TOKEN
from web.door.roles import Need, needs
from web.parts import Parts, PartsOf
from web.present.machines import delay_sheet, delays
from web.present.what_if import what_if_sheet, what_if_view
from web.reading.exports import Ending, sheet_answer
from web.reading.pool_page import DEFAULT_HOURS, MEASURED, page_of, pool_of

router = APIRouter()

Word = Annotated[str, Query(max_length=40)]


@router.get("/pools/{pool:path}/launches.{ending}")
@needs(Need.READ)
async def take_launches(parts: PartsOf, pool: str, ending: Ending) -> Response:
    """The bars of launch delays."""
    known = pool_of(parts, pool)
    measured = await fleet_acts.fleet_of(parts).instances(pool=known.spec.id, with_gone=True, limit=MEASURED)
    return sheet_answer(delay_sheet(known, delays(measured, known)), ending)


@router.get("/pools/{pool:path}/what-if.{ending}")
@needs(Need.READ)
async def take_what_if(
    parts: PartsOf,
    pool: str,
    ending: Ending,
    mode: Word = "",
    min_nodes: Word = "",
    max_nodes: Word = "",
    hours: Word = "",
) -> Response:
    """The lines that the page with the same query draws."""
    asked = {"mode": mode, "min_nodes": min_nodes, "max_nodes": max_nodes, "hours": hours}
    answers, _ = await _played(parts, pool_of(parts, pool), asked)
    return sheet_answer(what_if_sheet(answers), ending)


@router.get("/pools/{pool:path}/what-if")
@needs(Need.READ)
async def what_if(
    request: Request,
    parts: PartsOf,
    pool: str,
    mode: Word = "",
    min_nodes: Word = "",
    max_nodes: Word = "",
    hours: Word = "",
) -> Response:
    """The page of the pool, with what other bounds would have meant."""
    known = pool_of(parts, pool)
    asked = {"mode": mode, "min_nodes": min_nodes, "max_nodes": max_nodes, "hours": hours}
    if FORM_TOKEN in request.query_params:  # the form's button sends all its fields: no secret stays in an address
        return RedirectResponse(f"{request.url.path}?{urlencode(asked)}", 303)
    problem, answer = "", None
    try:
        answers, bounds = await _played(parts, known, asked)
        answer = what_if_view(answers, max_nodes=bounds.max_nodes)
    except AstraFlowError as refused:
        problem = str(refused)
    return await page_of(request, parts, known, asked=asked, what_if=answer, what_if_problem=problem)


async def _played(parts: Parts, pool: Pool, asked: dict[str, str]) -> tuple[Compared, PoolSpec]:
    """The answers, and the bounds that were asked about. Raises: InvalidInput for what cannot be; as `compared`."""
    bounds = bounds_from(pool.spec, asked)
    answers = await compared(
        parts,
        pool.spec.id,
        {"mode": bounds.mode.value, "min_nodes": bounds.min_nodes, "max_nodes": bounds.max_nodes},
        options={},
        hours=number_from(asked["hours"] or DEFAULT_HOURS, low=0.1, high=168.0, what="hours"),
    )
    return answers, bounds
