"""Charts of a pool: a what-if replay of recorded reports under other bounds, and launch delays; each also as a file."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.pools import Pool, PoolSpec
from web.components.downloads import FileFormat, sheet_response
from web.middleware.middleware import FORM_TOKEN
from web.pools.instances import launch_delay_sheet, launch_delays
from web.pools.pool_form import bounds_from, number_from
from web.pools.queries import DEFAULT_HOURS, MAX_MEASURED_INSTANCES, PoolDep, PoolPageDep
from web.pools.what_if import BoundsComparison, compare_bounds, what_if_sheet, what_if_view
from web.requests.dependencies import ControlDep, FleetDep
from web.security.roles import Permission, needs

router = APIRouter()

Word = Annotated[str, Query(max_length=40)]


@router.get("/pools/{pool:path}/launches.{ending}")
@needs(Permission.READ)
async def export_launches(fleet: FleetDep, pool: PoolDep, ending: FileFormat) -> Response:
    """Returns the launch delay histogram as a file."""
    measured = await fleet.require_client().instances(pool=pool.spec.id, with_gone=True, limit=MAX_MEASURED_INSTANCES)
    return sheet_response(launch_delay_sheet(pool, launch_delays(measured, pool)), ending)


async def _query(mode: Word = "", min_nodes: Word = "", max_nodes: Word = "", hours: Word = "") -> dict[str, str]:
    return {"mode": mode, "min_nodes": min_nodes, "max_nodes": max_nodes, "hours": hours}


QueryDep = Annotated[dict[str, str], Depends(_query)]


@router.get("/pools/{pool:path}/what-if.{ending}")
@needs(Permission.READ)
async def export_what_if(control: ControlDep, pool: PoolDep, ending: FileFormat, query: QueryDep) -> Response:
    """Returns the series that the what-if page with the same query draws, as a file."""
    answers, _ = await _what_if_answers(control, pool, query)
    return sheet_response(what_if_sheet(answers), ending)


@router.get("/pools/{pool:path}/what-if")
@needs(Permission.READ)
async def what_if(request: Request, control: ControlDep, pool_page: PoolPageDep, query: QueryDep) -> Response:
    """Shows the pool's page with the what-if result for other bounds."""
    if FORM_TOKEN in request.query_params:  # sent with the other fields; a secret must not stay in an address
        return RedirectResponse(f"{request.url.path}?{urlencode(query)}", 303)
    problem, code, result = "", "", None
    try:
        answers, bounds = await _what_if_answers(control, pool_page.pool, query)
        result = what_if_view(answers, max_nodes=bounds.max_nodes)
    except AstraFlowError as refused:
        problem, code = str(refused), refused.code
    return await pool_page.response(
        request, form_values=query, what_if=result, what_if_problem=problem, what_if_code=code
    )


async def _what_if_answers(
    control: ControlPlaneClient, pool: Pool, query: dict[str, str]
) -> tuple[BoundsComparison, PoolSpec]:
    """Returns the comparison and the requested bounds. Raises: InvalidInput for invalid bounds; as `compare_bounds`."""
    bounds = bounds_from(pool.spec, query)
    answers = await compare_bounds(
        control,
        pool,
        {"mode": bounds.mode.value, "min_nodes": bounds.min_nodes, "max_nodes": bounds.max_nodes},
        options={},
        hours=number_from(query["hours"] or DEFAULT_HOURS, low=0.1, high=168.0, what="hours"),
    )
    return answers, bounds
