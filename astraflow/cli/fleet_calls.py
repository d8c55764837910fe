"""Calls of the fleet plane from the command line. Who acts is who is logged in here; the run token speaks for them."""

import asyncio
import getpass
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from astraflow.cli.local import Door
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet import Actor, Applied, Decision, KillScope, LaunchId, PlanId, PlanRequest, Role
from astraflow.contract.ids import PoolId
from astraflow.wire.channel import dial

T = TypeVar("T")


def ask(door: Door, call: Callable[[FleetPlaneClient], Awaitable[T]]) -> T:
    """One call. Raises: as the client does."""

    async def asked() -> T:
        async with dial(door.address, token=door.token, tls=door.tls) as link:
            return await call(FleetPlaneClient(link))

    return asyncio.run(asked())


def plan_request(pool: str, *, target: int | None, retire: Sequence[str], is_kill: bool, reason: str) -> PlanRequest:
    """What to plan. Raises: InvalidInput for both or neither of target and retire."""
    return PlanRequest(
        pool=PoolId(pool),
        actor=_actor(),
        reason=reason,
        target=target,
        retire=tuple(LaunchId(one) for one in retire),
        is_kill=is_kill,
    )


def apply(door: Door, plan: str, *, key: str) -> Applied:
    """Carry a plan out."""
    return ask(door, lambda client: client.apply(PlanId(plan), key=key or _key(), approver=_actor()))


def hold(door: Door, pool: str, *, minutes: float, key: str, reason: str) -> Decision:
    """Take no node away."""
    return ask(
        door,
        lambda client: client.hold(PoolId(pool), minutes=minutes, actor=_actor(), key=key or _key(), reason=reason),
    )


def kill_switch(door: Door, scope: KillScope, *, key: str, reason: str) -> Decision:
    """Stop changes, or let them go on."""
    return ask(door, lambda client: client.kill_switch(scope, actor=_actor(), key=key or _key(), reason=reason))


def kill_scope(switch: str, *, agents: bool) -> KillScope:
    """Whom `on` or `off` stops. Raises: InvalidInput for another word."""
    if switch not in ("on", "off") or (switch == "off" and agents):
        raise InvalidInput(f"the kill switch is turned on, on --agents, or off, not {switch[:40]!r}")
    if switch == "off":
        return KillScope.NONE
    return KillScope.AGENTS if agents else KillScope.ALL


def pool_id(name: str) -> PoolId | None:
    """None for every pool."""
    return PoolId(name) if name else None


def _actor() -> Actor:
    return Actor(name=getpass.getuser(), role=Role.ADMIN)


def _key() -> str:
    return f"cli:{uuid.uuid4()}"
