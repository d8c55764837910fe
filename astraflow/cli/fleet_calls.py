"""Calls of the fleet plane from the command line. Who acts is who is logged in here; the run token speaks for them."""

import asyncio
import getpass
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from astraflow.access.authority import Authority
from astraflow.cli.local import Door
from astraflow.cli.options import TOKEN, read_token
from astraflow.cli.roles import client_tls
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet import Actor, Applied, Decision, KillScope, LaunchId, PlanId, PlanRequest, Role
from astraflow.contract.ids import PoolId
from astraflow.contract.rehearsals import Rehearsal
from astraflow.runtime.runs import active_runs
from astraflow.wire.channel import authority_client_tls, dial

T = TypeVar("T")


def find_fleet(
    address: str,
    token: str,
    token_file: Path | None,
    authority: Path | None,
    tls_ca: Path | None,
    tls_client_certificate: Path | None,
    tls_client_key: Path | None,
) -> Door:
    """The fleet service at `address`, or that of the latest active run here that has one.

    Raises: InvalidInput when no such run is active on this machine, or no token is known for `address`.
    """
    token = token or read_token(token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority)
    if address and token:
        return Door(address=address, token=token, tls=tls)
    for directory in active_runs():
        facts = directory.facts
        if facts.fleet and address in ("", facts.fleet):
            own = authority_client_tls(Authority.opened(directory.authority)) if facts.is_tls else None
            return Door(address=facts.fleet, token=token or directory.token, tls=tls or own)
    if address:
        raise InvalidInput(f"no token for {address}: give --token-file, or set {TOKEN} to the run's token")
    raise InvalidInput(
        "no run with a fleet service is active on this machine: start one (astraflow run RECIPE --fleet), or give "
        "--at HOST:PORT and its token"
    )


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


def rehearse(door: Door, provider: str) -> Rehearsal:
    """Ask a provider whether it would do its part."""
    return ask(door, lambda client: client.rehearse(provider, actor=_actor()))


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
