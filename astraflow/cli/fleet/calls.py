"""Calls of the fleet service from the command line. The actor is the system user, authorized by the run token."""

import getpass
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from astraflow.cli.run_endpoints import RunEndpoint
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.plans import Actor, AppliedPlan, PlanId, PlanRequest, Role
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.preflight import PreflightResult
from astraflow.contract.ids import PoolId

T = TypeVar("T")


def ask(endpoint: RunEndpoint, call: Callable[[FleetPlaneClient], Awaitable[T]]) -> T:
    """Makes one call. Raises: the errors of the client."""
    return endpoint.call(FleetPlaneClient, call)


def plan_request(pool: str, *, target: int | None, retire: Sequence[str], is_kill: bool, reason: str) -> PlanRequest:
    """Returns the request for a plan. Raises: InvalidInput for both or neither of target and retire."""
    return PlanRequest(
        pool=PoolId(pool),
        actor=_actor(),
        reason=reason,
        target=target,
        retire=tuple(LaunchId(launch) for launch in retire),
        is_kill=is_kill,
    )


def apply(endpoint: RunEndpoint, plan: str, *, key: str) -> AppliedPlan:
    return ask(endpoint, lambda client: client.apply(PlanId(plan), key=key or _key(), approver=_actor()))


def hold(endpoint: RunEndpoint, pool: str, *, minutes: float, key: str, reason: str) -> Decision:
    """Sets or ends the hold of a pool, during which no node is removed."""
    return ask(
        endpoint,
        lambda client: client.set_hold(PoolId(pool), minutes=minutes, actor=_actor(), key=key or _key(), reason=reason),
    )


def kill_switch(endpoint: RunEndpoint, scope: KillScope, *, key: str, reason: str) -> Decision:
    return ask(endpoint, lambda client: client.kill_switch(scope, actor=_actor(), key=key or _key(), reason=reason))


def preflight(endpoint: RunEndpoint, provider: str) -> PreflightResult:
    """Runs the preflight check of a provider."""
    return ask(endpoint, lambda client: client.run_preflight(provider, actor=_actor()))


def kill_scope(switch: str, *, agents: bool) -> KillScope:
    """Returns the scope for `on` or `off`. Raises: InvalidInput for another value."""
    if switch not in ("on", "off") or (switch == "off" and agents):
        raise InvalidInput(
            f"cannot set the kill switch to {switch[:40]!r}: it is not a known combination; use on, on --agents, or "
            "off",
            code="kill_switch.unknown_value",
        )
    if switch == "off":
        return KillScope.NONE
    return KillScope.AGENTS if agents else KillScope.ALL


def pool_id(name: str) -> PoolId | None:
    """Returns the id of a pool; None, for all pools, if the name is empty."""
    return PoolId(name) if name else None


def _actor() -> Actor:
    return Actor(name=getpass.getuser(), role=Role.ADMIN)


def _key() -> str:
    return f"cli:{uuid.uuid4()}"
