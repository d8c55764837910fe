"""API schemas of pools, plans and instances, converted from the contract types."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import AppliedPlan, Instance, KillScope, Plan, Pool, Verdict
from astraflow.contract.recommendations import Mode
from web.history.report_json import json_value
from web.rest.common import ResponseModel


class PoolSpecResponse(ResponseModel):
    """Spec of a pool: provider, instances, bounds and mode."""

    id: str
    provider: str
    mode: Mode
    min_nodes: int
    max_nodes: int
    usd_per_hour_max: float | None
    usd_per_day_max: float | None
    type: str
    region: str
    is_spot: bool
    engine: str
    capacity: int | None
    policies: tuple[str, ...] = Field(description="Policies that the nodes serve; empty for all.")
    drain_s: float
    options: dict[str, Any]


class PoolResponse(ResponseModel):
    """Pool as the fleet service reports it."""

    spec: PoolSpecResponse
    version: int = Field(description="Increases with every change; send it as `observed_version` of the next one.")
    target: int = Field(description="Target number of nodes of the last applied plan.")
    nodes: dict[str, int] = Field(description="Instances by state.", examples=[{"ready": 2, "pending": 1}])
    usd_per_hour: float = Field(description="Current cost in US dollars per hour.")
    usd_today: float = Field(description="Cost in US dollars since midnight UTC.")
    rule_target: int | None = Field(description="Recommended number of nodes; null without a recommendation.")
    launch_delay_s: float = Field(description="Seconds from the launch request to a ready node, 90th percentile.")
    override_until_at: float | None = Field(description="Manual override until this time. Unix seconds.")
    override_reason: str
    breaker_until: float | None = Field(description="No launch before this time, after failed launches. Unix seconds.")
    last_change_at: float | None = Field(description="Unix seconds.")
    simulated: list[str] = Field(description="Simulated parts of its provider.")
    can_inject_fault: bool = Field(description="Whether the provider supports fault injection.")
    terminating: dict[str, int] = Field(
        description="Instances that are draining or being terminated, by cause.", examples=[{"preempted": 1}]
    )
    losses: dict[str, int] = Field(
        description="Ready nodes that left within the last hour without a request, by cause: `preempted` by the "
        "provider with notice, or `lost` without.",
        examples=[{"preempted": 2}],
    )


class PoolList(ResponseModel):
    """All pools."""

    items: list[PoolResponse]
    age_s: float | None = Field(description="Seconds since the fleet service's last status.")


class FleetResponse(ResponseModel):
    """Status of the fleet service."""

    cluster: str = Field(description="Tag on all instances that the fleet service owns.")
    at: float = Field(description="Unix seconds.")
    age_s: float | None = Field(description="Seconds since the last status.")
    kill: KillScope
    kill_reason: str
    usd_per_hour: float
    usd_today: float
    last_sweep_at: float | None
    orphans: int = Field(description="Instances with its tag that are missing from its ledger.")
    waiting: int = Field(description="Proposals that wait for approval.")
    problems: list[str]
    pools: int


class FindingResponse(ResponseModel):
    """Finding of the guard on a plan."""

    code: str
    verdict: Verdict
    message: str
    numbers: dict[str, float] = Field(description="Figures of the message.", examples=[{"target": 40, "limit": 8}])


class PlanResponse(ResponseModel):
    """Plan: the changes that applying it would make."""

    id: str
    pool: str
    planned_by: str
    role: str
    reason: str
    observed_version: int
    nodes: int = Field(description="Current plus requested nodes.")
    target: int
    launches: int
    victims: list[str] = Field(description="Launch ids of the instances that would be removed.")
    is_kill: bool
    eta_s: float
    usd_per_hour_change: float
    verdict: Verdict
    findings: list[FindingResponse]
    created_at: float
    expires_at: float
    rule_target: int | None = Field(
        description="Recommended number of nodes when the plan was made; null without a recommendation."
    )
    override_s: float = Field(description="Seconds of manual override that applying it sets; 0 for none.")


class AppliedPlanResponse(ResponseModel):
    """Result of applying a plan; identical for every call with the same key."""

    plan: str
    decision: str = Field(description="Id under /api/v1/decisions.")
    launched: list[str]
    retired: list[str]
    message: str
    override_until_at: float | None = Field(description="Manual override until this time; null for none. Unix seconds.")


class InstanceResponse(ResponseModel):
    """Instance in the ledger. Times are Unix seconds, null before they are reached."""

    id: str
    pool: str
    state: str
    provider: str
    handle: str = Field(description="The provider's id of the instance.")
    type: str
    region: str
    is_spot: bool
    usd_per_hour: float
    actor: str = Field(description="Actor who requested the launch.")
    reason: str
    intended_at: float
    expires_at: float
    launched_at: float | None
    ready_at: float | None
    draining_at: float | None
    retiring_at: float | None
    gone_at: float | None
    cause: Cause | None = Field(description="Cause of its removal; null while it stays.")
    message: str


class InstanceList(ResponseModel):
    """Page of instances, newest first."""

    items: list[InstanceResponse]
    older: str | None = Field(description="`before` of the next page; null on the last.")


class TargetChange(ResponseModel):
    """Change of a target size."""

    at: float
    target: int
    sentence: str


class WhatIfComparison(ResponseModel):
    """Replay of recorded reports under the pool's options and under changed ones."""

    pool: str
    reports: int
    began_at: float
    ended_at: float
    now: list[TargetChange] = Field(description="Targets under the current options.")
    then: list[TargetChange] = Field(description="Targets under the changed options.")
    node_hours: float
    node_hours_now: float
    node_hours_recorded: float
    usd: float
    usd_now: float
    usd_recorded: float
    wait: float = Field(description="Share of time that the trainer would have waited.")
    wait_now: float
    wait_recorded: float


def pool_response(pool: Pool) -> dict[str, Any]:
    """Converts to the API schema."""
    values: dict[str, Any] = json_value(asdict(pool))
    counts: dict[str, Mapping[Any, int]] = {"nodes": pool.nodes, "terminating": pool.terminating, "losses": pool.losses}
    return values | {name: {key.value: number for key, number in by_key.items()} for name, by_key in counts.items()}


def plan_response(plan: Plan) -> dict[str, Any]:
    """Converts to the API schema, with the fields of the request merged into the plan's."""
    values: dict[str, Any] = json_value(asdict(plan))
    request = values.pop("request")
    actor = {"planned_by": plan.request.actor.name, "role": plan.request.actor.role.value}
    return values | actor | {"pool": request["pool"], "reason": request["reason"], "is_kill": request["is_kill"]}


def applied_plan_response(applied: AppliedPlan) -> dict[str, Any]:
    """Converts to the API schema."""
    values: dict[str, Any] = json_value(asdict(applied))
    return values | {"decision": f"fleet-{applied.decision}"}


def instance_response(instance: Instance) -> dict[str, Any]:
    """Converts to the API schema."""
    values: dict[str, Any] = json_value(asdict(instance))
    return values


class CheckResponse(ResponseModel):
    """Result of one preflight check."""

    kind: Literal["list", "launch", "price"] = Field(
        description="`list`: instances can be listed; `launch`: a launch would be accepted; `price`: the price is "
        "known."
    )
    pool: str | None = Field(description="Pool whose spec was checked; null for checks that concern no single pool.")
    is_ok: bool
    message: str = Field(description="Finding.")
    remedy: str = Field(description="How to fix a failure; empty if none is needed.")
