"""`/api/v1/fleet`, `/pools`, `/plans`, `/kill-switch`: how large pools are, and changing that."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.fleet import FleetStatus, KillScope, LaunchId, PlanId, PlanRequest, Pool
from astraflow.contract.ids import PoolId
from web.acts import fleet as fleet_acts
from web.acts.what_if import Compared, compared, figures
from web.door.roles import Need, On, needs
from web.feed.report_json import plain
from web.parts import Parts, PartsOf, ViewerOf
from web.routes.api.decision_terms import DecisionAnswer, LossAnswer, fleet_decision_answer
from web.routes.api.fleet_bodies import (
    HoldAsked,
    KillAsked,
    LoseAsked,
    PoolChange,
    ReasonOnly,
    RetireAsked,
    SizeAsked,
    WhatIfAsked,
)
from web.routes.api.fleet_terms import (
    AppliedAnswer,
    FleetAnswer,
    PlanAnswer,
    PoolAnswer,
    PoolList,
    WhatIfAnswered,
    applied_answer,
    plan_answer,
    pool_answer,
)
from web.routes.api.terms import NAME, PREFIX, SENT, Key, PoolName, refusals

router = APIRouter(prefix=PREFIX, tags=["fleet"])

PlanName = Annotated[str, Path(pattern=NAME, description="Id of the plan.", examples=["01KAN8Q0000000000000000000"])]


@router.get("/fleet", response_model=FleetAnswer, responses=refusals())
@needs(Need.READ)
async def fleet(parts: PartsOf) -> dict[str, Any]:
    """The fleet service: what everything costs, the kill switch, and what somebody has to look after."""
    status = _status(parts)
    return {
        "cluster": status.cluster,
        "at": status.at,
        "age_s": parts.fleet_state.age_s,
        "kill": status.kill.value,
        "kill_reason": status.kill_reason,
        "usd_per_hour": status.usd_per_hour,
        "usd_today": status.usd_today,
        "last_sweep_at": status.last_sweep_at,
        "orphans": status.orphans,
        "waiting": status.waiting,
        "troubles": list(status.troubles),
        "pools": len(status.pools),
    }


@router.get("/pools", response_model=PoolList, responses=refusals())
@needs(Need.READ)
async def pools(parts: PartsOf) -> dict[str, Any]:
    """Every pool: its spec, size, cost, and what the rule advises."""
    return {"items": [pool_answer(pool) for pool in _status(parts).pools], "age_s": parts.fleet_state.age_s}


@router.post("/pools/{pool:path}/plans", status_code=201, response_model=PlanAnswer, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.POOL)
async def plan(parts: PartsOf, viewer: ViewerOf, pool: PoolName, body: SizeAsked | RetireAsked) -> dict[str, Any]:
    """What a change would do: launches, victims, time, dollars, and what the guard finds. Nothing happens.

    Good for five minutes. State a `target`, or which machines to `retire`. 409 for what cannot be planned: a machine
    that is not the pool's, or a spec that its provider does not take.
    """
    known = _pool(parts, pool).spec.id
    request = PlanRequest(
        pool=known,
        actor=fleet_acts.actor_of(parts, viewer, pool=known),
        reason=body.reason,
        target=body.target if isinstance(body, SizeAsked) else None,
        retire=tuple(LaunchId(launch) for launch in body.retire) if isinstance(body, RetireAsked) else (),
        is_kill=body.is_kill,
    )
    try:
        return plan_answer(await fleet_acts.plan_change(parts, request))
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem


@router.post("/pools/{pool:path}/hold", response_model=DecisionAnswer, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.POOL)
async def hold(parts: PartsOf, viewer: ViewerOf, pool: PoolName, body: HoldAsked, key: Key) -> dict[str, Any]:
    """Take no node of the pool away for so many minutes; 0 ends it."""
    held = _pool(parts, pool).spec.id
    done = await fleet_acts.hold_pool(parts, viewer, held, minutes=body.minutes, key=key, reason=body.reason)
    return fleet_decision_answer(done)


@router.post("/pools/{pool:path}/lose", response_model=LossAnswer, responses=refusals(404, *SENT))
@needs(Need.ADMINISTER, on=On.POOL)
async def lose(parts: PartsOf, viewer: ViewerOf, pool: PoolName, body: LoseAsked, key: Key) -> dict[str, Any]:
    """Simulate a fault: a share of the pool's nodes ends at once, without notice, as if their machines had failed.

    409 where that cannot be done: the machines are somebody's, or no node works.
    """
    known = _pool(parts, pool).spec.id
    try:
        done = await fleet_acts.lose_nodes(parts, viewer, known, share=body.share, key=key, reason=body.reason)
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem
    return {"lost": list(done.lost), "decision": fleet_decision_answer(done.decision)}


@router.post("/pools/{pool:path}/what-if", response_model=WhatIfAnswered, responses=refusals(404, *SENT))
@needs(Need.READ)
async def what_if(parts: PartsOf, pool: PoolName, body: WhatIfAsked) -> dict[str, Any]:
    """What the rule would have advised over the record, under other bounds. Nothing happens.

    409 while nothing is recorded to go by, and for bounds that are not in order.
    """
    known = _pool(parts, pool)
    given = body.model_dump(exclude={"hours", "headroom"}, exclude_none=True)
    bounds = {"min_nodes": known.spec.min_nodes, "max_nodes": known.spec.max_nodes} | given
    if bounds["min_nodes"] > bounds["max_nodes"]:
        raise HTTPException(409, f"min_nodes {bounds['min_nodes']} would be above max_nodes {bounds['max_nodes']}")
    options = {} if body.headroom is None else {"headroom": body.headroom}
    try:
        return _what_if(await compared(parts, known.spec.id, bounds, options=options, hours=body.hours))
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem


@router.get("/pools/{pool:resource}", response_model=PoolAnswer, responses=refusals(404))
@needs(Need.READ)
async def pool(parts: PartsOf, pool: PoolName) -> dict[str, Any]:
    """One pool."""
    return pool_answer(_pool(parts, pool))


@router.put("/pools/{pool:resource}", response_model=PoolAnswer, responses=refusals(*SENT))
@needs(Need.ADMINISTER, on=On.POOL)
async def put_pool(parts: PartsOf, viewer: ViewerOf, pool: PoolName, body: PoolChange, key: Key) -> dict[str, Any]:
    """Make a pool, or change its bounds, mode or spec. 409 when it has another version than you observed."""
    done = await fleet_acts.put_pool(
        parts, viewer, body.spec(pool), observed_version=body.observed_version, key=key, reason=body.reason
    )
    return pool_answer(done)


@router.post("/plans/{plan}/apply", response_model=AppliedAnswer, responses=refusals(*SENT))
@needs(Need.OPERATE, on=On.PLAN)
async def apply(parts: PartsOf, viewer: ViewerOf, plan: PlanName, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Do what was planned. Machines start and end after the answer; `/api/v1/instances` shows them.

    409 when the pool has changed since, or the plan is not known (any more): plan again.
    """
    done = await fleet_acts.apply_plan(parts, viewer, PlanId(plan), key=key, reason=body.reason)
    return applied_answer(done)


@router.put("/kill-switch", response_model=DecisionAnswer, responses=refusals(*SENT))
@needs(Need.OPERATE, on=On.RUN)
async def kill_switch(parts: PartsOf, viewer: ViewerOf, body: KillAsked, key: Key) -> dict[str, Any]:
    """Stop agents, or everybody, from changing pools. Only an admin lets more happen again."""
    done = await fleet_acts.set_kill(parts, viewer, KillScope(body.scope), key=key, reason=body.reason)
    return fleet_decision_answer(done)


def _status(parts: Parts) -> FleetStatus:
    """The newest one. Raises: Unavailable without any."""
    if parts.fleet_state.status is None:
        fleet_acts.fleet_of(parts)
        raise Unavailable(parts.fleet_state.problem or "the fleet service has not answered yet")
    return parts.fleet_state.status


def _pool(parts: Parts, name: str) -> Pool:
    status = _status(parts)
    found = parts.fleet_state.pool(PoolId(name))
    if found is None:
        known = ", ".join(pool.spec.id for pool in status.pools) or "none yet"
        raise HTTPException(404, f"no pool is called {name}; known: {known}")
    return found


def _what_if(answers: Compared) -> dict[str, Any]:
    found: dict[str, Any] = {
        "pool": answers.pool,
        "reports": answers.then.reports,
        "began_at": answers.then.began_at,
        "ended_at": answers.then.ended_at,
    }
    for name, answer in (("now", answers.now), ("then", answers.then)):
        found[name] = [
            {"at": size.at, "target": size.target, "sentence": size.sentence} for size in answers.sizes(answer)
        ]
    for name in ("node_hours", "usd", "wait"):
        then, now, recorded = figures(answers, name)
        found |= {name: then, f"{name}_now": now, f"{name}_recorded": recorded}
    return dict(plain(found))
