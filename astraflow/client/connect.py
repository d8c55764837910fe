"""Connects to planes from outside AstraFlow: the entry points for the web page and the maintainer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow.access.callers import Role
from astraflow.access.credentials import is_join_token, read_claims
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.wire.channel import dial, folder_client_tls

if TYPE_CHECKING:
    from astraflow.client.credential import HeldCredential

JOIN_TIMEOUT_S = 30.0
"""Time after which a page that cannot join ends; its supervisor restarts it."""

PAGE_NAME = "page"
"""Name of a page whose token has no name."""


@asynccontextmanager
async def connect_control(
    address: str, token: str, *, authority: Path | None = None
) -> AsyncIterator[ControlPlaneClient]:
    """Connects a client of the control plane at `HOST:PORT` for the block.

    It connects lazily, checks only the form of the address here, and reconnects by itself. authority: folder of the
    run's certificate authority, required if the run uses TLS. Raises: InvalidInput for an
    address without a port, or a folder without an authority.
    """
    tls = folder_client_tls(authority) if authority else None
    async with dial(address, token=token, tls=tls) as link:
        yield ControlPlaneClient(link)


@asynccontextmanager
async def connect_agent(
    dataflow: str, fleet: str, token: str, *, name: str, authority: Path | None = None
) -> AsyncIterator[tuple[ControlPlaneClient, FleetPlaneClient]]:
    """Connects clients of both planes for a program that changes pools, for the block.

    token: the run token, or a join token of the role agent for `name`, which is exchanged at the `dataflow` address for
    a credential; it is renewed until the block ends. Raises: InvalidInput, NotAuthenticated, NotPermitted.
    """
    if authority is not None:
        async with (
            connect_control(dataflow, token, authority=authority) as control,
            connect_fleet(fleet, token, authority=authority) as plane,
        ):
            yield control, plane
        return
    async with (
        _joined(dataflow, token, role=Role.AGENT, name=name) as (joined_dataflow, credential),
        credential.dial(joined_dataflow) as dataflow_channel,
        credential.dial(fleet) as fleet_channel,
    ):
        yield ControlPlaneClient(dataflow_channel), FleetPlaneClient(fleet_channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAccess:
    """Credentials of a page for the services of its run."""

    token: str = field(repr=False)
    """The run token, or a join token of the role page."""
    fleet_token: str = field(default="", repr=False)
    """Token for the fleet service; empty to use `token`."""
    authority: Path | None = None
    """Folder of the run's certificate authority, for a run with TLS and a page on the same machine."""
    ca_hash: str = ""
    """Pin of the run's authority, with which the run token is exchanged for a credential."""
    credential_folder: Path | None = None
    """Folder that stores the credential for the next process."""

    @property
    def uses_credential(self) -> bool:
        """Returns whether the page joins the run to get its own credential."""
        return is_join_token(self.token) or bool(self.ca_hash)


@asynccontextmanager
async def connect_page(
    dataflow: str, fleet: str, access: PageAccess
) -> AsyncIterator[tuple[ControlPlaneClient, FleetPlaneClient | None]]:
    """Connects clients of both planes for the web page, for the block; None for a run without a fleet service.

    With a join token of the role page, or the run token and a pin, the page first joins at `dataflow`; its credential
    is renewed until the block ends. Raises: InvalidInput, NotAuthenticated, NotPermitted; Unavailable when the run
    cannot be joined in time.
    """
    async with AsyncExitStack() as resources:
        enter = resources.enter_async_context
        if access.uses_credential:
            name = read_claims(access.token).name if is_join_token(access.token) else ""
            joined_dataflow, credential = await enter(
                _joined(
                    dataflow,
                    access.token,
                    role=Role.PAGE,
                    name=name or PAGE_NAME,
                    ca_hash=access.ca_hash,
                    credential_folder=access.credential_folder,
                    give_up_after_s=JOIN_TIMEOUT_S,
                )
            )
            plane = FleetPlaneClient(await enter(credential.dial(fleet))) if fleet else None
            yield ControlPlaneClient(await enter(credential.dial(joined_dataflow))), plane
            return
        control = await enter(connect_control(dataflow, access.token, authority=access.authority))
        token = access.fleet_token or access.token
        yield control, await enter(connect_fleet(fleet, token, authority=access.authority)) if fleet else None


@asynccontextmanager
async def _joined(dataflow: str, token: str, **options: Any) -> AsyncIterator[tuple[str, "HeldCredential"]]:
    """Yields the address of dataflow and a credential that is renewed until the block ends."""
    from astraflow.client.credential import join_run  # X.509: see `folder_client_tls`

    joined_dataflow, credential = await join_run(dataflow, token=token, **options)
    renewing = asyncio.create_task(credential.run(joined_dataflow))
    try:
        yield joined_dataflow, credential
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
