"""What the API says about pools, plans and machines: the contract's words as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from astraflow.contract.fleet import Applied, Instance, Plan, Pool
from web.feed.report_json import plain
from web.routes.api.terms import Filled

ModeName = Literal["off", "advise", "up-only", "on"]
Scope = Literal["none", "agents", "all"]
CauseName = Literal["ordered", "taken", "lost", "failed", "expired", "unclear"]


class SpecAnswer(Filled):
    """What a pool is made of and how far it may go."""

    id: str
    provider: str
    mode: ModeName
    min_nodes: int
    max_nodes: int
    usd_per_hour_max: float | None
    usd_per_day_max: float | None
    type: str
    region: str
    is_spot: bool
    engine: str
    capacity: int | None
    drain_s: float
    options: dict[str, Any]


class PoolAnswer(Filled):
    """A pool as the fleet service sees it."""

    spec: SpecAnswer
    version: int = Field(description="Grows with every change: `observed_version` of the next one.")
    target: int = Field(description="Nodes it is to have, by the last plan that was applied.")
    nodes: dict[str, int] = Field(description="Machines in each state.", examples=[{"ready": 2, "pending": 1}])
    usd_per_hour: float = Field(description="US dollars an hour now.")
    usd_today: float = Field(description="US dollars since midnight in UTC.")
    rule_target: int | None = Field(description="What the rule advises; null while it says nothing.")
    launch_delay_s: float = Field(description="From the order to a node that works, 90th percentile.")
    hold_until: float | None = Field(description="Unix seconds.")
    hold_reason: str
    breaker_until: float | None = Field(description="Unix seconds; launches failed, none is tried before.")
    last_change_at: float | None = Field(description="Unix seconds.")
    simulated: list[str] = Field(description="What of its provider is a stand-in.")
    can_lose: bool = Field(description="Whether nodes can be lost on somebody's word: a simulated fault.")
    leaving: dict[str, int] = Field(
        description="Machines that drain or are retired, by what made them go.", examples=[{"taken": 1}]
    )
    losses: dict[str, int] = Field(
        description="Nodes that worked and went within the last hour without having been asked: `taken` away by the "
        "provider with a notice, or `lost`.",
        examples=[{"taken": 2}],
    )


class PoolList(Filled):
    """Every pool."""

    items: list[PoolAnswer]
    age_s: float | None = Field(description="Seconds since the fleet service was heard.")


class FleetAnswer(Filled):
    """The fleet service as a whole."""

    cluster: str = Field(description="Tag of all machines that are its own.")
    at: float = Field(description="Unix seconds.")
    age_s: float | None = Field(description="Seconds since it was heard.")
    kill: Scope
    kill_reason: str
    usd_per_hour: float
    usd_today: float
    last_sweep_at: float | None
    orphans: int = Field(description="Machines with its tag that its ledger does not know.")
    waiting: int = Field(description="Proposals that wait for a person.")
    troubles: list[str]
    pools: int


class FindingAnswer(Filled):
    """A rule of the guard that a plan touches."""

    code: str
    verdict: Literal["allowed", "needs_approval", "refused"]
    message: str
    numbers: dict[str, float] = Field(description="What the message is about.", examples=[{"target": 40, "limit": 8}])


class PlanAnswer(Filled):
    """What applying it would do."""

    id: str
    pool: str
    planned_by: str
    role: str
    reason: str
    observed_version: int
    nodes: int = Field(description="It has now, or has ordered.")
    target: int
    launches: int
    victims: list[str] = Field(description="Launch ids of the machines that would go.")
    is_kill: bool
    eta_s: float
    usd_per_hour_change: float
    verdict: Literal["allowed", "needs_approval", "refused"]
    findings: list[FindingAnswer]
    created_at: float
    expires_at: float
    rule_target: int | None = Field(description="What the rule wanted when it was made; null when it said nothing.")
    hold_s: float = Field(description="With it no node of the pool is taken away for so long; 0 for no hold.")


class AppliedAnswer(Filled):
    """What came of it; the same for every call with the same key."""

    plan: str
    decision: str = Field(description="Its id under /api/v1/decisions.")
    launched: list[str]
    retired: list[str]
    message: str
    hold_until: float | None = Field(description="Until then no node of the pool is taken away; null for no hold.")


class InstanceAnswer(Filled):
    """A machine in the ledger. Times are Unix seconds, null for what has not come yet."""

    id: str
    pool: str
    state: str
    provider: str
    handle: str = Field(description="The provider's own id.")
    type: str
    region: str
    is_spot: bool
    usd_per_hour: float
    actor: str = Field(description="Who had it launched.")
    reason: str
    intended_at: float
    expires_at: float
    launched_at: float | None
    ready_at: float | None
    draining_at: float | None
    retiring_at: float | None
    gone_at: float | None
    cause: CauseName | None = Field(description="What made it go; null while it stays.")
    message: str


class InstanceList(Filled):
    """A page of machines, newest first."""

    items: list[InstanceAnswer]
    older: str | None = Field(description="`before` of the next page; null on the last.")


class Size(Filled):
    """A target from a moment on."""

    at: float
    target: int
    sentence: str


class WhatIfAnswered(Filled):
    """What would have been advised, and what was."""

    pool: str
    reports: int
    began_at: float
    ended_at: float
    now: list[Size] = Field(description="With the options as they are.")
    then: list[Size] = Field(description="With the others.")
    node_hours: float
    node_hours_now: float
    node_hours_recorded: float
    usd: float
    usd_now: float
    usd_recorded: float
    wait: float = Field(description="Share of the time that the trainer would have waited.")
    wait_now: float
    wait_recorded: float


def pool_answer(pool: Pool) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = plain(asdict(pool))
    counts: dict[str, Mapping[Any, int]] = {"nodes": pool.nodes, "leaving": pool.leaving, "losses": pool.losses}
    return found | {name: {key.value: number for key, number in given.items()} for name, given in counts.items()}


def plan_answer(plan: Plan) -> dict[str, Any]:
    """As JSON has it: the request's words beside the plan's."""
    found: dict[str, Any] = plain(asdict(plan))
    request = found.pop("request")
    actor = {"planned_by": plan.request.actor.name, "role": plan.request.actor.role.value}
    return found | actor | {"pool": request["pool"], "reason": request["reason"], "is_kill": request["is_kill"]}


def applied_answer(applied: Applied) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = plain(asdict(applied))
    return found | {"decision": f"fleet-{applied.decision}"}


def instance_answer(instance: Instance) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = plain(asdict(instance))
    return found
