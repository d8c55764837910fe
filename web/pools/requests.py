"""API request bodies for pools, plans, holds, faults and the kill switch."""

import json
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from web.rest.common import MAX_EXACT_INTEGER, NAME, WITHOUT_NUL, Reason, RequestBody, WholeNumber

MAX_NODES = 1_000_000
MAX_USD = 1e9
MAX_OPTION_BYTES = 16 * 1024
MAX_OPTION_DEPTH = 8

Text = Annotated[str, Field(max_length=200, pattern=WITHOUT_NUL)]
Usd = Annotated[float, Field(ge=0, le=MAX_USD, allow_inf_nan=False)]
Capacity = Annotated[int, Field(ge=1, le=MAX_NODES), WholeNumber]
ObservedVersion = Annotated[int, Field(ge=0, le=MAX_EXACT_INTEGER), WholeNumber]
Count = Annotated[int, Field(ge=0, le=MAX_NODES), WholeNumber]

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


class PoolChange(RequestBody):
    """Complete spec of a pool. Omitted fields are reset to defaults: send the spec you read, with your changes."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    provider: str = Field(pattern=NAME, description="Name of one of the fleet service's providers.")
    mode: Mode = Field(
        Mode.ADVISE, strict=False, description="Changes that the sizing rule and agents may apply without a person."
    )
    min_nodes: Count = Field(0, description="Minimum number of nodes.")
    max_nodes: Count = Field(8, description="Maximum number of nodes; at least `min_nodes`.")
    usd_per_hour_max: Usd | None = Field(None, description="Cost limit in US dollars per hour; null for none.")
    usd_per_day_max: Usd | None = Field(None, description="Cost limit in US dollars per day (UTC); null for none.")
    type: Text = Field("", description="Instance type, as the provider names it; empty for its default.")
    region: Text = Field("", description="Region of the instances; empty for the provider's default.")
    is_spot: bool = Field(False, description="Use spot instances, which the provider may preempt.")
    engine: str = Field(
        "", max_length=2000, pattern=WITHOUT_NUL, description="Inference engine of the nodes: a kind, or a TOML table."
    )
    capacity: Capacity | None = Field(None, description="Concurrent episodes per node; null for the engine's default.")
    policies: tuple[Annotated[str, Field(pattern=NAME)], ...] = Field(
        (),
        strict=False,  # JSON has no tuples
        max_length=64,
        description="Policies that the nodes serve; empty for all. Needs the mode `off` or `advise`.",
    )
    drain_s: float = Field(
        600.0,
        ge=0,
        le=86400,
        allow_inf_nan=False,
        description="Seconds in which a draining node finishes or returns its tasks.",
    )
    options: dict[str, Any] = Field({}, description="Provider-specific options; at most 16 KiB and 8 levels deep.")
    observed_version: ObservedVersion = Field(description="`version` of the pool you read; 0 to create a pool.")
    reason: Reason

    @field_validator("options")
    @classmethod
    def _is_small(cls, value: dict[str, Any]) -> dict[str, Any]:
        if _depth(value) > MAX_OPTION_DEPTH:
            raise ValueError(f"cannot accept options: nested deeper than {MAX_OPTION_DEPTH} levels; flatten them")
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except ValueError:
            raise ValueError(
                "cannot accept options: a value cannot be encoded as JSON; use finite numbers and valid Unicode"
            ) from None
        if len(text) > MAX_OPTION_BYTES:
            raise ValueError(f"cannot accept options: larger than {MAX_OPTION_BYTES} bytes; shorten them")
        return value

    def spec(self, pool: str) -> PoolSpec:
        """Converts to the contract type. Raises: InvalidInput if the minimum exceeds the maximum."""
        values = self.model_dump(exclude={"observed_version", "reason"})
        return PoolSpec(id=PoolId(pool), **values)


class ResizeRequest(RequestBody):
    """Target size of a pool."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"target": 6, "reason": "the trainer waits"}]})

    target: Count = Field(description="Target number of nodes.")
    is_kill: bool = Field(False, description="Terminate without draining; admins only.")
    reason: Reason


class RetireRequest(RequestBody):
    """Instances to remove from a pool."""

    model_config = ConfigDict(json_schema_extra={"examples": [_RETIRE_EXAMPLE]})

    retire: list[Annotated[str, Field(pattern=NAME)]] = Field(
        min_length=1, max_length=1000, description="Launch ids of the instances to remove."
    )
    is_kill: bool = Field(False, description="Terminate without draining; admins only.")
    reason: Reason


class HoldRequest(RequestBody):
    """Hold of a pool, during which no node is removed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"minutes": 30, "reason": "a demonstration"}]})

    minutes: float = Field(ge=0, le=60, allow_inf_nan=False, description="Minutes from now; 0 ends the hold.")
    reason: Reason


class KillSwitchRequest(RequestBody):
    """State of the kill switch."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"scope": "agents", "reason": "something is odd"}]})

    scope: KillScope = Field(
        strict=False,
        description="`agents` blocks changes by agents, `all` all changes; `none` allows changes (admins only).",
    )
    reason: Reason


class WhatIfBoundsRequest(RequestBody):
    """Bounds for a what-if replay of the recorded reports."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "on", "min_nodes": 1, "max_nodes": 12}]})

    mode: Mode | None = Field(None, strict=False, description="Default: the pool's mode.")
    min_nodes: Count | None = Field(None, description="Minimum number of nodes. Default: the pool's.")
    max_nodes: Count | None = Field(None, description="Maximum number of nodes. Default: the pool's.")
    headroom: float | None = Field(
        None, ge=0, le=0.15, allow_inf_nan=False, description="Headroom of the sizing rule; a share."
    )
    hours: float = Field(
        24.0, gt=0, le=168, allow_inf_nan=False, description="Length of the replay, back from now. Hours."
    )


def _depth(value: Any) -> int:
    """Returns the nesting depth of lists and objects; iterative, so deep input cannot overflow the stack."""
    deepest, level = 0, [value]
    while level and deepest <= MAX_OPTION_DEPTH:
        deepest += 1
        inner = [
            list(item.values()) if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)
        ]
        level = [item for items in inner for item in items]
    return deepest


class FaultInjectionRequest(RequestBody):
    """Share of a pool's nodes to terminate, as if their instances had failed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"share": 0.3, "reason": "fault injection test"}]})

    share: float = Field(
        gt=0, le=1, allow_inf_nan=False, description="Share of the ready nodes; at least one is terminated."
    )
    reason: Reason
