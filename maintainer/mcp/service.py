"""Composition root of MCP: connects the planes, builds sessions and a server, serves stdio or HTTP."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from mcp.server import MCPServer

from astraflow.client.connect import connect_agent
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.service import run_until
from maintainer.agent.observation.names import KEY_BYTES, Names
from maintainer.agent.observation.snapshot import SnapshotReader
from maintainer.mcp.http import McpEndpoint, serve_http
from maintainer.mcp.server import mcp_server
from maintainer.mcp.sessions import ServerModes, Sessions


@asynccontextmanager
async def open_mcp_server(
    *,
    dataflow: str,
    fleet: str,
    token: str,
    authority: Path | None,
    name: str,
    directory: Path,
    modes: ServerModes,
    shows_names: bool = False,
) -> AsyncIterator[MCPServer]:
    """Builds a server connected to a run for the duration of the block. name: agent in the journal. directory: parent
    of transcripts.

    Raises: InvalidInput.
    """
    clock = SystemClock()
    async with connect_agent(dataflow, fleet, token, name=name, authority=authority) as (control, plane):
        sessions = Sessions(
            snapshot_reader=lambda: SnapshotReader(control, plane, clock),
            fleet=plane,
            names=Names(secrets.token_bytes(KEY_BYTES), shows_names=shows_names),
            name=name,
            clock=clock,
            directory=directory,
            modes=modes,
        )
        with sessions:
            yield mcp_server(sessions)


async def serve_mcp(
    server: MCPServer, *, endpoint: McpEndpoint | None, stop: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Serves until `stop` is set or the client disconnects. endpoint: for HTTP; None for stdio."""
    if endpoint is not None:
        await serve_http(server, endpoint, stop=stop, on_ready=on_ready)
    else:
        await run_until(stop, server.run_stdio_async(), drain=_no_op)


async def _no_op() -> None:
    """Does nothing: the client of an answer in flight has disconnected."""
