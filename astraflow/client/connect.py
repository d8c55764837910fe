"""Dialling a plane from outside AstraFlow: the web page and the maintainer need nothing below this."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.access.callers import Role
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.wire.channel import dial, folder_client_tls


@asynccontextmanager
async def connect_control(
    address: str, token: str, *, authority: Path | None = None
) -> AsyncIterator[ControlPlaneClient]:
    """A client of the control plane at `HOST:PORT`, open for the block.

    Dialling is lazy: nothing is checked here but the form of the address, and a lost connection comes back by itself.
    authority: folder of the run's certificate authority, for a run that speaks TLS and a process that holds its token.
    Raises: InvalidInput for an address without a port, or a folder without an authority.
    """
    tls = folder_client_tls(authority) if authority else None
    async with dial(address, token=token, tls=tls) as link:
        yield ControlPlaneClient(link)


@asynccontextmanager
async def connect_agent(
    dataflow: str, fleet: str, token: str, *, name: str, authority: Path | None = None
) -> AsyncIterator[tuple[ControlPlaneClient, FleetPlaneClient]]:
    """Both planes for a program that acts on pools, open for the block.

    token: the run's, or a join token of the role agent for `name`: that is exchanged for a credential, which is renewed
    as long as the block lasts. `dataflow` is then where those who join get theirs.
    Raises: InvalidInput, NotAuthenticated, NotPermitted.
    """
    if authority is not None:
        async with (
            connect_control(dataflow, token, authority=authority) as control,
            connect_fleet(fleet, token, authority=authority) as plane,
        ):
            yield control, plane
        return
    from astraflow.client.badge import badge_for  # X.509: see `folder_client_tls`

    where, badge = await badge_for(dataflow, token=token, role=Role.AGENT, name=name)
    async with badge.dial(where) as to_dataflow, badge.dial(fleet) as to_fleet:
        renewing = asyncio.create_task(badge.run(where))
        try:
            yield ControlPlaneClient(to_dataflow), FleetPlaneClient(to_fleet)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
