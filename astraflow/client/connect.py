"""Dialling a plane from outside AstraFlow: the web page and the maintainer need nothing below this."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.wire.channel import ClientTls, dial


@asynccontextmanager
async def connect_control(address: str, token: str, tls: ClientTls | None = None) -> AsyncIterator[ControlPlaneClient]:
    """A client of the control plane at `HOST:PORT`, open for the block.

    Dialling is lazy: nothing is checked here but the form of the address, and a lost connection comes back by itself.
    Raises: InvalidInput for an address without a port.
    """
    async with dial(address, token=token, tls=tls) as link:
        yield ControlPlaneClient(link)
