"""What the API is told about pools, plans and the kill switch."""

import json
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import PoolSpec
from astraflow.contract.ids import PoolId
from web.routes.api.fleet_terms import ModeName, Scope
from web.routes.api.terms import LARGEST, NAME, Body, Reason, Whole

MOST_NODES = 1_000_000
MOST_USD = 1e9
OPTION_BYTES = 16 * 1024
OPTION_DEPTH = 8

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


def _depth(value: Any) -> int:
    """How deep lists and objects are nested; walks without recursion."""
    deepest, level = 0, [value]
    while level and deepest <= OPTION_DEPTH:
        deepest += 1
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [item for items in inner for item in items]
    return deepest


class LoseAsked(Body):
    """That nodes end as if their machines had failed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"share": 0.3, "reason": "a drill"}]})

    share: float = Field(gt=0, le=1, allow_inf_nan=False, description="Of the nodes that work; at least one ends.")
    reason: Reason
