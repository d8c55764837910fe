"""`/api/v1/fleet`, `/pools`, `/plans`, `/kill-switch`: status and size of pools, and changes."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.plans import PlanId, PlanRequest
from astraflow.contract.fleet.pools import FleetStatus, Pool
from astraflow.contract.ids import PoolId
from web.decisions.queries import DecisionEntry, entry_of
from web.decisions.schemas import DecisionResponse, FaultInjectionResponse
from web.live.followed_fleet import FollowedFleet
from web.pools.requests import (
    FaultInjectionRequest,
    HoldRequest,
    KillSwitchRequest,
    PoolChange,
    ResizeRequest,
    RetireRequest,
    WhatIfBoundsRequest,
)
from web.pools.what_if import BoundsComparison, compare_bounds, figures
from web.requests.dependencies import CommandsDep, ControlDep, FleetDep
from web.rest.common import NAME, ApiRouter, Key, Limit, PoolName, ReasonRequest
from web.rest.fleet_schemas import (
    AppliedPlanResponse,
    FleetResponse,
    InstanceList,
    PlanResponse,
    PoolList,
    PoolResponse,
    WhatIfComparison,
    applied_plan_response,
    plan_response,
)
from web.security.roles import Permission, ResourceKind, needs

router = ApiRouter(tags=["fleet"])

PlanName = Annotated[str, Path(pattern=NAME, description="Id of the plan.", examples=["01KAN8Q0000000000000000000"])]


@router.get("/fleet", response_model=FleetResponse)
@needs(Permission.READ)
async def fleet(fleet: FleetDep) -> dict[str, Any]:
    """Returns the fleet service's status: cost, kill switch, and problems that need attention."""
    status = _status(fleet)
    return FleetResponse.values_of(status, pools=len(status.pools), age_s=fleet.state.age_s)


@router.get("/pools", response_model=PoolList)
@needs(Permission.READ)
async def pools(fleet: FleetDep) -> dict[str, Any]:
    """Lists pools with spec, size, cost and recommendation."""
    return {"items": _status(fleet).pools, "age_s": fleet.state.age_s}


@router.post("/pools/{pool:path}/plans", status_code=201, response_model=PlanResponse)
@needs(Permission.OPERATE, on=ResourceKind.POOL)
async def plan(
    commands: CommandsDep, fleet: FleetDep, pool: PoolName, body: ResizeRequest | RetireRequest
) -> dict[str, Any]:
    """Plans a change without applying it: launches, removed instances, duration, cost, and the guard's findings.

    A plan is valid for five minutes. Send a `target`, or the instances to `retire`. Returns 409 if the change cannot be
    planned: an instance of another pool, or a spec that the provider refuses.
    """
    pool_id = _pool(fleet, pool).spec.id
    request = PlanRequest(
        pool=pool_id,
        actor=commands.actor(pool=pool_id),
        reason=body.reason,
        target=body.target if isinstance(body, ResizeRequest) else None,
        retire=tuple(LaunchId(launch) for launch in body.retire) if isinstance(body, RetireRequest) else (),
        is_kill=body.is_kill,
    )
    return plan_response(await commands.plan_change(request))


@router.post("/pools/{pool:path}/hold", response_model=DecisionResponse)
@needs(Permission.OPERATE, on=ResourceKind.POOL)
async def set_hold(
    commands: CommandsDep, fleet: FleetDep, pool: PoolName, body: HoldRequest, key: Key
) -> DecisionEntry:
    """Sets a hold, during which no node of the pool is removed; 0 minutes ends it."""
    pool_id = _pool(fleet, pool).spec.id
    done = await commands.set_pool_hold(pool_id, minutes=body.minutes, key=key, reason=body.reason)
    return entry_of(done)


@router.post("/pools/{pool:path}/inject-fault", response_model=FaultInjectionResponse)
@needs(Permission.ADMINISTER, on=ResourceKind.POOL)
async def inject_fault(
    commands: CommandsDep, fleet: FleetDep, pool: PoolName, body: FaultInjectionRequest, key: Key
) -> dict[str, Any]:
    """Injects a fault: terminates a share of the pool's nodes at once, as if their instances had failed.

    Returns 409 if the provider does not support fault injection, or no node is ready.
    """
    pool_id = _pool(fleet, pool).spec.id
    done = await commands.inject_fault(pool_id, share=body.share, key=key, reason=body.reason)
    return {"lost": done.lost, "decision": entry_of(done.decision)}


@router.post("/pools/{pool:path}/what-if", response_model=WhatIfComparison)
@needs(Permission.READ)
async def what_if(control: ControlDep, fleet: FleetDep, pool: PoolName, body: WhatIfBoundsRequest) -> dict[str, Any]:
    """Replays the recorded reports under other bounds and returns the recommendations. Changes nothing.

    Returns 409 without recorded reports, and if the minimum exceeds the maximum.
    """
    stored_pool = _pool(fleet, pool)
    changed_fields = body.model_dump(mode="json", exclude={"hours", "headroom"}, exclude_none=True)
    bounds = {"min_nodes": stored_pool.spec.min_nodes, "max_nodes": stored_pool.spec.max_nodes} | changed_fields
    if bounds["min_nodes"] > bounds["max_nodes"]:
        raise HTTPException(
            409, f"cannot replay: min_nodes {bounds['min_nodes']} exceeds max_nodes {bounds['max_nodes']}; change one"
        )
    options = {} if body.headroom is None else {"headroom": body.headroom}
    return _what_if(await compare_bounds(control, stored_pool, bounds, options=options, hours=body.hours))


@router.get("/pools/{pool:resource}", response_model=PoolResponse)
@needs(Permission.READ)
async def pool(fleet: FleetDep, pool: PoolName) -> Pool:
    """Returns a pool."""
    return _pool(fleet, pool)


@router.put("/pools/{pool:resource}", response_model=PoolResponse)
@needs(Permission.ADMINISTER, on=ResourceKind.POOL)
async def put_pool(commands: CommandsDep, pool: PoolName, body: PoolChange, key: Key) -> Pool:
    """Creates a pool or changes its bounds, mode or spec. Returns 409 if `observed_version` is outdated."""
    return await commands.put_pool(body.spec(pool), observed_version=body.observed_version, key=key, reason=body.reason)


@router.post("/plans/{plan}/apply", response_model=AppliedPlanResponse)
@needs(Permission.OPERATE, on=ResourceKind.PLAN)
async def apply(commands: CommandsDep, plan: PlanName, body: ReasonRequest, key: Key) -> dict[str, Any]:
    """Applies a plan. Instances start and end after the response; `/api/v1/instances` lists them.

    Returns 409 if the pool has changed since, or the plan is unknown or expired: plan again.
    """
    done = await commands.apply_plan(PlanId(plan), key=key, reason=body.reason)
    return applied_plan_response(done)


@router.put("/kill-switch", response_model=DecisionResponse)
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def kill_switch(commands: CommandsDep, body: KillSwitchRequest, key: Key) -> DecisionEntry:
    """Sets the kill switch, which blocks changes of pools by agents or all actors. Only admins may relax it."""
    done = await commands.set_kill_switch(body.scope, key=key, reason=body.reason)
    return entry_of(done)


def _status(fleet: FollowedFleet) -> FleetStatus:
    """Returns the newest status. Raises: Unavailable without one."""
    if fleet.state.status is None:
        fleet.require_client()
        raise Unavailable(
            fleet.state.problem or "cannot show the fleet: the fleet service has not answered yet; try again",
            code="fleet.no_status",
        )
    return fleet.state.status


def _pool(fleet: FollowedFleet, name: str) -> Pool:
    status = _status(fleet)
    found_pool = fleet.state.pool(PoolId(name))
    if found_pool is None:
        pool_names = ", ".join(pool.spec.id for pool in status.pools) or "none yet"
        raise HTTPException(404, f"cannot find pool {name!r}: it does not exist; use one of {pool_names}")
    return found_pool


def _what_if(answers: BoundsComparison) -> dict[str, Any]:
    response: dict[str, Any] = {
        "pool": answers.pool,
        "reports": answers.changed.reports,
        "began_at": answers.changed.began_at,
        "ended_at": answers.changed.ended_at,
    }
    for name, answer in (("now", answers.current), ("then", answers.changed)):
        response[name] = answers.recommendations(answer)
    for name in ("node_hours", "usd", "wait"):
        then, now, recorded = figures(answers, name)
        response |= {name: then, f"{name}_now": now, f"{name}_recorded": recorded}
    return response


@router.get("/instances", response_model=InstanceList)
@needs(Permission.READ)
async def instances(
    fleet: FleetDep,
    pool: Annotated[str | None, Query(pattern=NAME, description="Only instances of this pool.")] = None,
    gone: Annotated[
        Literal["without", "with"], Query(description="Whether terminated instances are included.")
    ] = "without",
    before: Annotated[str | None, Query(pattern=NAME, description="`older` of the previous page.")] = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Lists instances, newest first."""
    page = await fleet.require_client().instances(
        pool=PoolId(pool) if pool else None,
        with_gone=gone == "with",
        before=LaunchId(before) if before else None,
        limit=limit,
    )
    older = str(page[-1].id) if len(page) == limit else None
    return {"items": page, "older": older}
