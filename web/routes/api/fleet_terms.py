"""What the API says about pools, plans and machines, and what it is told: the contract's words as JSON."""

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import Applied, Instance, Plan, Pool, PoolSpec
from astraflow.contract.ids import PoolId
from web.report_json import plain
from web.routes.api.terms import LARGEST, NAME, Body, Filled, Reason, Whole

MOST_NODES = 1_000_000
MOST_USD = 1e9
OPTION_BYTES = 16 * 1024
OPTION_DEPTH = 8

ModeName = Literal["off", "advise", "up-only", "on"]
Scope = Literal["none", "agents", "all"]
Text = Annotated[str, Field(max_length=200)]
Usd = Annotated[float, Field(ge=0, le=MOST_USD, allow_inf_nan=False)]
Capacity = Annotated[int, Field(ge=1, le=MOST_NODES), Whole]
Observed = Annotated[int, Field(ge=0, le=LARGEST), Whole]
Count = Annotated[int, Field(ge=0, le=MOST_NODES), Whole]

_EXAMPLE: dict[str, Any] = {
    "provider": "here",
    "mode": "on",
    "min_nodes": 2,
    "max_nodes": 8,
    "usd_per_hour_max": 20.0,
    "usd_per_day_max": 200.0,
    "observed_version": 4,
    "reason": "room for the larger model",
}
_RETIRE_EXAMPLE: dict[str, Any] = {"retire": ["01KAN8Q0000000000000000000"], "reason": "its disk fails"}


class PoolChange(Body):
    """A pool's whole spec. What is left out gets its default, so send what you read with your changes."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    provider: str = Field(pattern=NAME, description="Name of one of the fleet service's providers.")
    mode: ModeName = Field("advise", description="How far the rule and programs may go without a person.")
    min_nodes: Count = Field(0, description="Never fewer.")
    max_nodes: Count = Field(8, description="Never more; at least `min_nodes`.")
    usd_per_hour_max: Usd | None = Field(None, description="US dollars an hour; null for no bound.")
    usd_per_day_max: Usd | None = Field(None, description="US dollars of a day in UTC; null for no bound.")
    type: Text = Field("", description="The provider's name of the hardware; empty for its default.")
    region: Text = Field("", description="Where machines stand; empty for the provider's default.")
    is_spot: bool = Field(False, description="Machines that may be taken away at short notice.")
    engine: str = Field("", max_length=2000, description="Of the nodes: a kind, or a TOML table.")
    capacity: Capacity | None = Field(None, description="Episodes a node runs at once.")
    drain_s: float = Field(600.0, ge=0, le=86400, allow_inf_nan=False, description="Time to finish or hand back.")
    options: dict[str, Any] = Field({}, description="What only the provider knows; at most 16 KiB, 8 deep.")
    observed_version: Observed = Field(description="Of the pool you read; 0 to make a pool.")
    reason: Reason

    @field_validator("options")
    @classmethod
    def _is_small(cls, value: dict[str, Any]) -> dict[str, Any]:
        if _depth(value) > OPTION_DEPTH:
            raise ValueError(f"options are nested at most {OPTION_DEPTH} deep")
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except ValueError:
            raise ValueError("options hold a number or a text that JSON cannot hold") from None
        if len(text) > OPTION_BYTES:
            raise ValueError(f"options have at most {OPTION_BYTES} bytes")
        return value

    def spec(self, pool: str) -> PoolSpec:
        """As the contract has it. Raises: InvalidInput for bounds that are not in order."""
        values = self.model_dump(exclude={"observed_version", "reason", "mode"})
        return PoolSpec(id=PoolId(pool), mode=Mode(self.mode), **values)


class SizeAsked(Body):
    """A size."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"target": 6, "reason": "the trainer waits"}]})

    target: Count = Field(description="Nodes the pool is to have.")
    is_kill: bool = Field(False, description="Without a drain; for admins.")
    reason: Reason


class RetireAsked(Body):
    """Certain machines gone, and no others."""

    model_config = ConfigDict(json_schema_extra={"examples": [_RETIRE_EXAMPLE]})

    retire: list[Annotated[str, Field(pattern=NAME)]] = Field(
        min_length=1, max_length=1000, description="Launch ids of the machines that are to go."
    )
    is_kill: bool = Field(False, description="Without a drain; for admins.")
    reason: Reason


class ReasonOnly(Body):
    """Why."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "agreed in the morning"}]})

    reason: Reason


class HoldAsked(Body):
    """For how long no node is taken away."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"minutes": 30, "reason": "a demonstration"}]})

    minutes: float = Field(ge=0, le=60, allow_inf_nan=False, description="0 ends a hold.")
    reason: Reason


class KillAsked(Body):
    """Whom to stop."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"scope": "agents", "reason": "something is odd"}]})

    scope: Scope = Field(description="`agents` stops programs, `all` everybody; `none` lets them go on (admins).")
    reason: Reason


class WhatIfAsked(Body):
    """Other bounds for what is recorded."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "on", "min_nodes": 1, "max_nodes": 12}]})

    mode: ModeName | None = Field(None, description="Left out: as it is.")
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    headroom: float | None = Field(None, ge=0, le=0.15, allow_inf_nan=False, description="Of the rule.")
    hours: float = Field(24.0, gt=0, le=168, allow_inf_nan=False, description="Of the run, back from now.")


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
    troubles: list[str]
    pools: int


class FindingAnswer(Filled):
    """A rule of the guard that a plan touches."""

    code: str
    verdict: Literal["allowed", "needs_approval", "refused"]
    message: str


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


class AppliedAnswer(Filled):
    """What came of it; the same for every call with the same key."""

    plan: str
    decision: str = Field(description="Its id under /api/v1/decisions.")
    launched: list[str]
    retired: list[str]
    message: str


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
    return found | {"nodes": {state.value: number for state, number in pool.nodes.items()}}


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


def _depth(value: Any) -> int:
    """How deep lists and objects are nested; walks without recursion."""
    deepest, level = 0, [value]
    while level and deepest <= OPTION_DEPTH:
        deepest += 1
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [item for items in inner for item in items]
    return deepest
