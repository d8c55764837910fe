"""API schemas of pools, plans and instances."""

from pydantic import Field

from astraflow.contract.fleet.instances import Instance
from astraflow.contract.fleet.plans import AppliedPlan, Plan, Role
from astraflow.contract.fleet.pools import FleetStatus, Pool
from astraflow.contract.fleet.recommendations import Reason
from astraflow.contract.ids import PoolId
from web.rest.common import ItemList, ResponseModel
from web.rest.contract_models import fields_of


@fields_of(Pool)
class PoolResponse(ResponseModel):
    """Pool as the fleet service reports it."""

    version: int = Field(description="Increases with every change; send it as `observed_version` of the next one.")


class PoolList(ItemList[PoolResponse]):
    """All pools."""

    age_s: float | None = Field(description="Seconds since the fleet service's last status.")


@fields_of(FleetStatus)
class FleetResponse(ResponseModel):
    """Status of the fleet service."""

    pools: int = Field(description="Pools; `GET /api/v1/pools` lists them. Count.")
    age_s: float | None = Field(description="Seconds since the last status.")


@fields_of(Plan, without=("request", "guard_json"))
class PlanResponse(ResponseModel):
    """Plan: the changes that applying it would make."""

    pool: PoolId
    planned_by: str = Field(description="Name of the actor.")
    role: Role = Field(description="Role of the actor.")
    reason: str = Field(description="Reason of the request, for the audit log.")
    is_kill: bool = Field(description="Whether instances are terminated without a drain.")
    run: str = Field(description="Change of the run itself, as a sentence; empty for a change of a pool.")


@fields_of(AppliedPlan, without=("guard_json",))
class AppliedPlanResponse(ResponseModel):
    """Result of applying a plan; identical for every call with the same key."""

    decision: str = Field(description="Id under /api/v1/decisions.")


@fields_of(Instance)
class InstanceResponse(ResponseModel):
    """Instance in the ledger. Times are Unix seconds, null before they are reached."""


class InstanceList(ItemList[InstanceResponse]):
    """Page of instances, newest first."""

    older: str | None = Field(description="`before` of the next page; null on the last.")


class TargetChange(ResponseModel):
    """Change of a target size."""

    at: float = Field(description="Unix seconds.")
    target: int = Field(description="Number of nodes.")
    reasons: list[Reason] = Field(description="Reasons, the deciding one first.")


class WhatIfComparison(ResponseModel):
    """Replay of recorded reports under the pool's options and under changed ones."""

    pool: PoolId
    reports: int = Field(description="Replayed reports. Count.")
    began_at: float = Field(description="Time of the first report. Unix seconds.")
    ended_at: float = Field(description="Time of the last report. Unix seconds.")
    now: list[TargetChange] = Field(description="Targets under the current options.")
    then: list[TargetChange] = Field(description="Targets under the changed options.")
    node_hours: float = Field(description="Node-hours under the changed options.")
    node_hours_now: float = Field(description="Node-hours under the current options.")
    node_hours_recorded: float = Field(description="Node-hours as recorded.")
    usd: float = Field(description="Cost under the changed options. US dollars.")
    usd_now: float = Field(description="Cost under the current options. US dollars.")
    usd_recorded: float = Field(description="Cost as recorded. US dollars.")
    wait: float = Field(description="Share of time that the trainer would have waited.")
    wait_now: float = Field(description="The same under the current options.")
    wait_recorded: float = Field(description="Share of time that the trainer waited, as recorded.")


def plan_response(plan: Plan) -> dict[str, object]:
    """Converts to the API schema, with the fields of the request merged into the plan's."""
    request = plan.request
    return PlanResponse.values_of(
        plan,
        pool=request.pool,
        planned_by=request.actor.name,
        role=request.actor.role,
        reason=request.reason,
        is_kill=request.is_kill,
        run=request.run.sentence if request.run is not None else "",
    )


def applied_plan_response(applied: AppliedPlan) -> dict[str, object]:
    """Converts to the API schema."""
    return AppliedPlanResponse.values_of(applied, decision=f"fleet-{applied.decision}")
