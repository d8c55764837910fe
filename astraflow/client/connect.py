"""Dialling a plane from outside AstraFlow: the web page and the maintainer need nothing below this."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.access.authority import Authority
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.wire.channel import authority_client_tls, dial


@asynccontextmanager
async def connect_control(
    address: str, token: str, *, authority: Path | None = None
) -> AsyncIterator[ControlPlaneClient]:
    """A client of the control plane at `HOST:PORT`, open for the block.

    Dialling is lazy: nothing is checked here but the form of the address, and a lost connection comes back by itself.
    authority: folder of the run's certificate authority, for a run that speaks TLS and a process that holds its token.
    Raises: InvalidInput for an address without a port, or a folder without an authority.
    """
    tls = authority_client_tls(Authority.opened(authority)) if authority else None
    async with dial(address, token=token, tls=tls) as link:
        yield ControlPlaneClient(link)
