"""Dialling a plane from outside AstraFlow: the web page and the maintainer need nothing below this."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow.access.callers import Role
from astraflow.access.credentials import claims_of, is_join_token
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.wire.channel import dial, folder_client_tls

if TYPE_CHECKING:
    from astraflow.client.badge import Badge

JOIN_S = 30.0
"""A page that cannot join within this time ends, and whatever started it starts it again."""

PAGE_NAME = "page"
"""Name of a page whose token gives it none."""


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
    async with (
        _joined(dataflow, token, role=Role.AGENT, name=name) as (where, badge),
        badge.dial(where) as to_dataflow,
        badge.dial(fleet) as to_fleet,
    ):
        yield ControlPlaneClient(to_dataflow), FleetPlaneClient(to_fleet)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAccess:
    """Credentials of a page for the services of its run."""

    token: str = field(repr=False)
    """The run token, or a join token of the role page."""
    fleet_token: str = field(default="", repr=False)
    """Token for the fleet service; empty to use `token`."""
    authority: Path | None = None
    """Folder of the run's certificate authority, for a run that speaks TLS and a page beside it."""
    ca_hash: str = ""
    """Pin of the run's authority, with which the run token is exchanged for a credential."""
    keep: Path | None = None
    """Folder in which the credential is kept for the next process."""

    @property
    def is_exchanged(self) -> bool:
        """Whether the page gets a credential of its own."""
        return is_join_token(self.token) or bool(self.ca_hash)


@asynccontextmanager
async def connect_page(
    dataflow: str, fleet: str, access: PageAccess
) -> AsyncIterator[tuple[ControlPlaneClient, FleetPlaneClient | None]]:
    """The planes of the run that a page follows, open for the block; None for a run without a fleet service.

    With a join token of the role page, or the run token and a pin, the page joins first, at `dataflow`: its credential
    is renewed as long as the block lasts.
    Raises: InvalidInput, NotAuthenticated, NotPermitted; Unavailable when the run cannot be joined in time.
    """
    async with AsyncExitStack() as resources:
        enter = resources.enter_async_context
        if access.is_exchanged:
            name = claims_of(access.token).name if is_join_token(access.token) else ""
            where, badge = await enter(
                _joined(
                    dataflow,
                    access.token,
                    role=Role.PAGE,
                    name=name or PAGE_NAME,
                    ca_hash=access.ca_hash,
                    keep=access.keep,
                    give_up_after_s=JOIN_S,
                )
            )
            plane = FleetPlaneClient(await enter(badge.dial(fleet))) if fleet else None
            yield ControlPlaneClient(await enter(badge.dial(where))), plane
            return
        control = await enter(connect_control(dataflow, access.token, authority=access.authority))
        token = access.fleet_token or access.token
        yield control, await enter(connect_fleet(fleet, token, authority=access.authority)) if fleet else None


@asynccontextmanager
async def _joined(dataflow: str, token: str, **options: Any) -> AsyncIterator[tuple[str, "Badge"]]:
    """Yields the address of dataflow and a credential that is renewed until the block ends."""
    from astraflow.client.badge import badge_for  # X.509: see `folder_client_tls`

    where, badge = await badge_for(dataflow, token=token, **options)
    renewing = asyncio.create_task(badge.run(where))
    try:
        yield where, badge
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
