"""`/api/v1/instances`: the ledger of machines."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from astraflow.contract.fleet import LaunchId
from astraflow.contract.ids import PoolId
from web.acts.fleet import fleet_of
from web.door.roles import Need, needs
from web.parts import PartsOf
from web.routes.api.fleet_terms import InstanceList, instance_answer
from web.routes.api.terms import NAME, PREFIX, Limit, refusals

router = APIRouter(prefix=PREFIX, tags=["fleet"])


@router.get("/instances", response_model=InstanceList, responses=refusals())
@needs(Need.READ)
async def instances(
    parts: PartsOf,
    pool: Annotated[str | None, Query(pattern=NAME, description="Of this pool only.")] = None,
    gone: Annotated[Literal["without", "with"], Query(description="Whether those that ended are listed.")] = "without",
    before: Annotated[str | None, Query(pattern=NAME, description="`older` of the page before.")] = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Machines, newest first."""
    found = await fleet_of(parts).instances(
        pool=PoolId(pool) if pool else None,
        with_gone=gone == "with",
        before=LaunchId(before) if before else None,
        limit=limit,
    )
    older = str(found[-1].id) if len(found) == limit else None
    return {"items": [instance_answer(instance) for instance in found], "older": older}
