"""`/api/v1/instances`: the fleet service's ledger of instances."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from astraflow.contract.fleet import LaunchId
from astraflow.contract.ids import PoolId
from web.commands.fleet import fleet_of
from web.request_context import RequestContextDep
from web.routes.api.common import NAME, PREFIX, Limit, error_responses
from web.routes.api.fleet_schemas import InstanceList, instance_response
from web.security.roles import Permission, needs

router = APIRouter(prefix=PREFIX, tags=["fleet"])


@router.get("/instances", response_model=InstanceList, responses=error_responses())
@needs(Permission.READ)
async def instances(
    context: RequestContextDep,
    pool: Annotated[str | None, Query(pattern=NAME, description="Only instances of this pool.")] = None,
    gone: Annotated[
        Literal["without", "with"], Query(description="Whether terminated instances are included.")
    ] = "without",
    before: Annotated[str | None, Query(pattern=NAME, description="`older` of the previous page.")] = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Lists instances, newest first."""
    page = await fleet_of(context).instances(
        pool=PoolId(pool) if pool else None,
        with_gone=gone == "with",
        before=LaunchId(before) if before else None,
        limit=limit,
    )
    older = str(page[-1].id) if len(page) == limit else None
    return {"items": [instance_response(instance) for instance in page], "older": older}
