"""The composition root of MCP: connects planes, builds a session and its server, speaks over stdio or HTTP."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from mcp.server import MCPServer

from astraflow.client.connect import connect_agent
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.service import run_until
from maintainer.mcp_http import McpDoor, serve_http
from maintainer.mcp_server import mcp_server
from maintainer.mcp_sessions import Modes, Sessions
from maintainer.names import KEY_BYTES, Names
from maintainer.sight import Eyes


@asynccontextmanager
async def built_mcp(
    *,
    dataflow: str,
    fleet: str,
    token: str,
    authority: Path | None,
    name: str,
    directory: Path,
    modes: Modes,
    shows_names: bool = False,
) -> AsyncIterator[MCPServer]:
    """A server on the planes of a run, for the block. name: of the agent in the journal. directory: for transcripts.

    Raises: InvalidInput.
    """
    clock = SystemClock()
    async with connect_agent(dataflow, fleet, token, name=name, authority=authority) as (control, plane):
        sessions = Sessions(
            eyes=lambda: Eyes(control, plane, clock),
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
    server: MCPServer, *, door: McpDoor | None, stop: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Speak until `stop` is set, or the client has gone. door: for HTTP; None for stdio, which says nothing else."""
    if door is not None:
        await serve_http(server, door, stop=stop, on_ready=on_ready)
    else:
        await run_until(stop, server.run_stdio_async(), drain=_nothing)


async def _nothing() -> None:
    """An answer in flight goes to a client that has gone."""
